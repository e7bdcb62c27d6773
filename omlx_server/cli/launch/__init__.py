"""`omlx-server launch`: starts coding agents of others so that they use this server."""
