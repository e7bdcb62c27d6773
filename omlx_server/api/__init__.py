"""The HTTP side of the server. It runs on the asyncio thread, and works on tokens only through
text/ and engine/client/."""
