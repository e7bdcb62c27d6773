"""Experts of a mixture that stay on the disk: where they lie, and which are in memory. Pure."""
