"""GGUF files as weights of MLX models, in the quantised form that they have."""
