"""Our full-attention KV caches: how they store keys and values, and attention on what is stored."""
