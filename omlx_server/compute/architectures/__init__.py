"""What single architectures of mlx-lm need beyond what their cache classes tell."""
