"""Reads weights from model directories into modules, in slices. Mlx thread."""
