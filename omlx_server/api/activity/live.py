"""Send the server's state to all listeners once a second. Runs on the asyncio thread."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from omlx_server.errors import QueueFull, Unavailable

EVERY_SECONDS = 1.0
MOST_LISTENERS = 64
# A listener that is further behind loses the oldest events.
_MOST_BEHIND = 16


class Broadcast:
    """Events for any number of listeners, made only while there are some. `make` is told whether
    the event is the first for them."""

    def __init__(self, make: Callable[[bool], Awaitable[bytes]]) -> None:
        self._make = make
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest: bytes | None = None
        self._closed = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def events(self, most: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the latest event and the next ones, at most `most`. Raises QueueFull for too many
        listeners, Unavailable while shutting down."""
        if self._closed:
            raise Unavailable("the server is shutting down")
        if self.listeners >= MOST_LISTENERS:
            raise QueueFull(f"{MOST_LISTENERS} clients listen already", retry_after=5)
        queue = asyncio.Queue[bytes | None]()
        self._listeners.add(queue)
        if self._latest is not None:
            queue.put_nowait(self._latest)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            while most is None or most > 0:
                event = await queue.get()
                if event is None:
                    return
                most = None if most is None else most - 1
                yield event
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task = self._latest = None

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._send(None)

    async def _run(self) -> None:
        first = True
        try:
            while True:
                self._latest = await self._make(first)
                self._send(self._latest)
                first = False
                await asyncio.sleep(EVERY_SECONDS)
        finally:
            if self._task is asyncio.current_task():  # it failed: let nobody wait for ever
                self._task = self._latest = None
                self._send(None)

    def _send(self, event: bytes | None) -> None:
        for queue in self._listeners:
            if queue.qsize() >= _MOST_BEHIND:
                queue.get_nowait()
            queue.put_nowait(event)
