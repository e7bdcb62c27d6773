"""omlx-server as a background service of its user: a launchd agent or a systemd user unit."""
