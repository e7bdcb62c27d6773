"""The mlx thread that computes, and its asyncio clients."""
