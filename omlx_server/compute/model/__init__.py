"""Loads models from their directories, and computes the fingerprints that tell them apart."""
