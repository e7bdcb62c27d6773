"""Reports of what the server is doing."""
