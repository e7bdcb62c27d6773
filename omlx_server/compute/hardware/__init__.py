"""The machine: its processor, its memory, and the device that MLX computes on."""
