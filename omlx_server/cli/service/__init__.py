"""`omlx-server service`: commands for the server as a background service."""
