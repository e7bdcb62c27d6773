"""Speculation: drafted tokens are kept only if the row samples them, so they change no answer."""
