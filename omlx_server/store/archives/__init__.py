"""Prefixes as one verified file."""
