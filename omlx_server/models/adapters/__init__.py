"""LoRA adapters on the disk: which ones a model has, and what their files say. No mlx."""
