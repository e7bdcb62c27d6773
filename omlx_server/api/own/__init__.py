"""Routes that are no other API's: health, tokenize, rerank."""
