"""Finds tool calls in a model's text: every family's markup behind one streaming parser."""
