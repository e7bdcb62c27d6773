"""Pure decisions: no mlx, no I/O, no clock of its own. What changes belongs to the mlx thread, so
no locks are needed; values may be read by any thread."""
