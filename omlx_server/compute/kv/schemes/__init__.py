"""Schemes of stored keys and values: plain or in few bits."""
