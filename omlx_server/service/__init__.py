"""omlx-server as a background service of its user: a launchd agent or a systemd user unit.

`launchd` and `systemd` are pure: from a `Service` to the text of its file and to the steps that put
it in place. `steps` says what a step is, `runner` takes them; the command line prints them instead
when it is asked what it would do. `notify` is the server's side: it tells the manager how it is.
"""
