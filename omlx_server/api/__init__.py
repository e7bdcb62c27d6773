"""HTTP. Lives on the asyncio thread; knows tokens through text/ and the engine's client only."""
