"""Reasoning: what a model writes before it answers."""
