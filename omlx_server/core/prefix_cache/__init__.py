"""The prefix cache: lookup, cuts, checkpoints and eviction of computed prompts."""
