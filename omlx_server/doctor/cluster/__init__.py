"""Checks the machines of a cluster before it serves. `check` acts as rank 0."""
