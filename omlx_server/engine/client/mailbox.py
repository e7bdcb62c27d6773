"""What the engine has sent for one request and its client has not read yet. Lives on the event
loop's thread.

All that one turn of the engine gave is read at once: a stream is woken once a turn, not once a
token.
"""

import asyncio
from collections import deque

from omlx_server.engine.messages import Outbound


class Mailbox:
    """A queue with one reader."""

    def __init__(self) -> None:
        self._events: deque[Outbound] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, event: Outbound) -> None:
        """Add an event, and wake the reader if it waits."""
        self._events.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def first(self) -> Outbound:
        """Wait for the next event, and return that alone."""
        first, *others = await self.all()
        self._events.extendleft(reversed(others))
        return first

    async def all(self) -> list[Outbound]:
        """Wait until there is an event, and return all that are there."""
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        events = list(self._events)
        self._events.clear()
        return events
