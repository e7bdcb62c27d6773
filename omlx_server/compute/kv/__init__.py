"""Full-attention KV caches that refer to stored tokens."""
