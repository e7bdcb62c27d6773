"""Drafters: a draft model, or heads of the model itself."""
