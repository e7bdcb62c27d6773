"""Routes outside the big APIs: health, tokenize, rerank."""
