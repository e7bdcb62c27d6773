"""Turns strings into token ids and back. Encoding runs in worker threads, detokenising on the
asyncio thread. No mlx."""
