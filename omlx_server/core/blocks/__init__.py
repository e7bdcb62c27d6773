"""Blocks of computed tokens: their keys, their index, their leases and pins, eviction. Pure."""
