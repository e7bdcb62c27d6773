"""Clients of the mlx thread and its models, for the event loop's thread."""
