"""Pure decisions, without mlx, I/O or a clock. Mutable objects belong to the mlx thread; any thread
may read values."""
