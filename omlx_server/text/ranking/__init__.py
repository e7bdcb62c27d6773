"""Prompts of models that embed and rank."""
