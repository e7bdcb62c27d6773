"""Parts of the sampler: what changes the logits of many rows at once before a token is chosen."""
