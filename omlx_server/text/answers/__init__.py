"""Turns the token ids of an answer into its text, thoughts and tool calls, piece by piece."""
