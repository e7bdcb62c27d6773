"""The machine: its processor, its memory, and MLX's device."""
