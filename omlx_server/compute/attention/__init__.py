"""Attention on the CPU backend, and of all tokens to all tokens."""
