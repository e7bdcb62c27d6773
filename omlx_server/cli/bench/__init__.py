"""`omlx-server bench`: measures a running server over HTTP, without MLX."""
