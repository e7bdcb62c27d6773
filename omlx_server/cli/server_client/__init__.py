"""How commands ask a running server."""
