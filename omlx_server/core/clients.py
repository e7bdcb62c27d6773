"""For whom the work at hand is done."""

from contextvars import ContextVar
from typing import Final

CLIENT: Final[ContextVar[bytes]] = ContextVar("client", default=b"")
"""Who sends the request at hand, by what a client can't make up: its key, else its address. Empty
for what the server does for itself."""
