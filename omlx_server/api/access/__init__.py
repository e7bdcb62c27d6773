"""Access control (host, origin, API key), and the tenant of a request."""
