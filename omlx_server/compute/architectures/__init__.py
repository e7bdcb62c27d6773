"""Exceptions for single architectures of mlx-lm, whose cache classes alone would mislead us."""
