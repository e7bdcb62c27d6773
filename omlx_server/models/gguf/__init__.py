"""Converts GGUF files to model directories in MLX layout."""
