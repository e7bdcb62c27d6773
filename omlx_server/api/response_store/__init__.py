"""Stores for responses: in memory or on the disk."""
