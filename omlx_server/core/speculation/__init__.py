"""Speculation: which tokens are drafted for a row, how many of them are worth a wider step. A draft
token is taken if it is what the row samples at its position, so a draft changes no answer."""
