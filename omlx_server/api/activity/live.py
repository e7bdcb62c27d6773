"""Send the server's state to all listeners once a second. Runs on the asyncio thread."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from omlx_server.errors import QueueFull, Unavailable

EVERY_SECONDS = 1.0
MOST_LISTENERS = 64
# A listener that is further behind loses the oldest events.
_MAX_EVENTS_BEHIND = 16


class Broadcast:
    """Sends events to listeners, and makes them only while there are some. `make_event` is told
    whether it makes the first one after a pause without listeners."""

    def __init__(self, make_event: Callable[[bool], Awaitable[bytes]]) -> None:
        self._make_event = make_event
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._latest: bytes | None = None
        self._closed = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def events(self, max_events: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the latest event and the next ones, at most `max_events`. Raises QueueFull for too
        many listeners, Unavailable while shutting down."""
        if self._closed:
            raise Unavailable("the server is shutting down")
        if self.listeners >= MOST_LISTENERS:
            raise QueueFull(f"{MOST_LISTENERS} clients listen already", retry_after=5)
        queue = asyncio.Queue[bytes | None]()
        self._listeners.add(queue)
        if self._latest is not None:
            queue.put_nowait(self._latest)
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_each_second())
        try:
            while max_events is None or max_events > 0:
                event = await queue.get()
                if event is None:
                    return
                max_events = None if max_events is None else max_events - 1
                yield event
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._sender is not None:
                self._sender.cancel()
                self._sender = self._latest = None

    def close(self) -> None:
        self._closed = True
        self._send(None)

    async def _send_each_second(self) -> None:
        is_first = True
        try:
            while True:
                self._latest = await self._make_event(is_first)
                self._send(self._latest)
                is_first = False
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            if self._sender is asyncio.current_task():  # it failed: let nobody wait for ever
                self._sender = self._latest = None
                self._send(None)

    def _send(self, event: bytes | None) -> None:
        """Queue an event for each listener; None ends its stream."""
        for queue in self._listeners:
            if queue.qsize() >= _MAX_EVENTS_BEHIND:
                queue.get_nowait()
            queue.put_nowait(event)
