"""The engine for code on the event loop's thread: clients of the mlx thread and of its models."""
