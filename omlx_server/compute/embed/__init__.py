"""Encoders: models that compute embeddings or relevance scores of texts. Mlx thread."""
