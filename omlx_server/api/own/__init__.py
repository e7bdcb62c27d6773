"""Routes that belong to none of the big APIs: health, tokenize, rerank."""
