"""omlx-server as a background service of its user: a launchd agent or a systemd user unit.
`launchd` and `systemd` describe `steps`; `runner` carries them out."""
