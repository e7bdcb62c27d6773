"""Speculation: which tokens are drafted for a row, and how many are worth a wider step. A drafted
token is kept only if the row samples it, so drafts change no answer."""
