"""omlx-server as a background service of its user or of the system (launchd, systemd)."""
