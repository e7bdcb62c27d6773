"""Which prompts and rows the next step computes: order, admission, queues. Pure."""
