"""Pure decisions, without mlx, I/O or a clock. The mlx thread owns what changes."""
