"""`omlx-server serve` and `up`: a server in the foreground, from the first start on."""
