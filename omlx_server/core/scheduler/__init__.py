"""The scheduler: chooses the prompts and rows of the next step. Pure."""
