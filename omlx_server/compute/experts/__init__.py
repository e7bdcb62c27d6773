"""Computes a mixture whose experts are read from the disk when they are needed."""
