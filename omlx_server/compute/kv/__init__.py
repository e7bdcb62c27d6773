"""Our full-attention KV caches: alone and in batches, by reference to what is stored already."""
