"""LoRA adapters on the disk: their names and files. No mlx."""
