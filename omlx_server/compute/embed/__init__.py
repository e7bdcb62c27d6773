"""Models that read without writing: embeddings and relevance scores. Owned by the mlx thread."""
