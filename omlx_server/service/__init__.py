"""omlx-server as a background service of its user: a launchd agent or a systemd user unit.

`launchd` and `systemd` turn a `Service` into the text of its file and into the steps (`steps`) that
install it; they change nothing themselves. `runner` carries the steps out; with --dry-run the
command line prints them instead. `notify` runs in the server and tells the manager its state.
"""
