"""Tiny models of every architecture that mlx-lm has."""
