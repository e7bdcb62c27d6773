"""`omlx-server serve` and `up`: run a server in the foreground."""
