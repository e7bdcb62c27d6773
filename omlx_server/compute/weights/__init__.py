"""Reads weights from the files of a model directory into modules, in slices. Mlx thread."""
