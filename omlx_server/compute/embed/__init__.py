"""Encoders: models that compute embeddings or relevance scores of texts and generate no text. Owned
by the mlx thread."""
