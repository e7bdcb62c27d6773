"""Blocks of computed tokens: their keys, the index of them, who leases and pins them."""
