"""The KV cache in few bits: how it is stored, and attention on what is stored."""
