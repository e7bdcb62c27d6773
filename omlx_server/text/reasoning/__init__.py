"""Reasoning: what a model writes for itself before it answers."""
