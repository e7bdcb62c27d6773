"""Constrains the form of an answer by masks of allowed tokens: structured output, forced tools."""
