"""The HTTP side of the server, on the asyncio thread."""
