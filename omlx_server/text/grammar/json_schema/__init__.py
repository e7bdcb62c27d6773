"""Prepares a client's JSON schema for the grammar engine."""
