"""`omlx-server config`: commands that show, change and check the settings."""
