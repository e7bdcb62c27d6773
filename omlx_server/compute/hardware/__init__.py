"""The machine: its processors, its memory, what MLX computes on."""
