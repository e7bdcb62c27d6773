"""The mlx thread that computes, and the asyncio client that the HTTP side talks to."""
