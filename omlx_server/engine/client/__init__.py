"""Clients of the mlx thread and its models. They live on the event loop's thread."""
