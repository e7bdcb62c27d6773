"""Encoders: models that make embeddings and relevance scores of texts, and write none. Owned by the
mlx thread."""
