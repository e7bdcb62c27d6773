"""Loads models from their directories, and computes their fingerprints."""
