"""The prefix cache, which finds computed prompts again: lookup, cuts, checkpoints, eviction."""
