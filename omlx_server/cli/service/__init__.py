"""`omlx-server service`: the server in the background."""
