"""Constrains answers by masks of allowed tokens: structured output, forced tools."""
