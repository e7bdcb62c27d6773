"""Clients with which commands ask a running server."""
