"""Estimates how much memory a model's steps take, from probes that run when it is loaded."""
