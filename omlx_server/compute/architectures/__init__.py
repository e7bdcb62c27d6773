"""Special cases of single architectures of mlx-lm."""
