"""Estimates of the memory and time of a model's steps, from probes at load."""
