"""Unread events of one request. Lives on the event loop's thread.

All events of one engine turn are read at once, so a stream wakes once a turn.
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
        self._events.append(event)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def first(self) -> Outbound:
        first, *others = await self.all()
        self._events.extendleft(reversed(others))
        return first

    async def all(self) -> list[Outbound]:
        while not self._events:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        events = list(self._events)
        self._events.clear()
        return events
