"""Full-attention KV caches of single sequences and batches, which refer to stored tokens."""
