"""`omlx-server config`: settings are shown, changed and checked."""
