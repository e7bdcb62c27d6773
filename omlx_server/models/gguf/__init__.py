"""GGUF files as model directories in MLX layout."""
