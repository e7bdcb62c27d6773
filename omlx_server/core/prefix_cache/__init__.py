"""What was computed of prompts is found again: lookup, cuts, checkpoints, eviction. Pure."""
