"""Pure decisions: no mlx, no I/O, no clock of its own. Runs on the mlx thread, needs no locks."""
