"""Checks the machines of a cluster before it serves: `check` is rank 0 for that time, `sums` the
part of it that needs MLX, a program of its own, and `findings` say what was found."""
