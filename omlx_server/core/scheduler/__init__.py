"""The scheduler: chooses the prompts and rows that the next step computes. Pure."""
