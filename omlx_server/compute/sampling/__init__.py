"""Parts of the sampler: changes of the logits of many rows at once."""
