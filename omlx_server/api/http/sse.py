"""Server-sent events, and noticing that a client has gone.

A response that streams or that takes long runs beside a watcher of the connection: when the
client leaves, the work is cancelled, which closes its generation and frees its rows.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omlx_server.api.http.errors import envelope
from omlx_server.api.http.exchange import failed
from omlx_server.errors import OmlxError, Unavailable

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


def event(data: object) -> bytes:
    """One `data:` event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, unless the client leaves first: then it is cancelled.

    Raises:
        ClientGone: the client left.
        Unavailable: the server ends and can wait no longer; only then this is cancelled itself.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    except asyncio.CancelledError:
        raise Unavailable("the server is shutting down") from None
    finally:
        await _cancel(task)
        await _cancel(watcher)


class EventStream(Response):
    """Writes an iterator of ready-made events; comments keep a silent connection alive.

    The first event is awaited for up to one ping interval before the status is sent, so that an
    early failure is a plain HTTP error, and `late_headers` can tell what is known by then. A later
    failure becomes an event, made by `on_error`, and the stream ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        ping_seconds: float,
        late_headers: Callable[[], Mapping[str, str]] = dict,
        *,
        on_error: Callable[[OmlxError], bytes] = lambda error: event(envelope(error)) + DONE,
        keepalive: bytes = KEEPALIVE,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._late_headers = late_headers
        del self.headers["content-length"]
        self._events = events
        self._ping = ping_seconds
        self._on_error = on_error
        self._keepalive = keepalive
        self._upcoming: asyncio.Future[bytes | None] | None = None
        self._started = False
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            try:
                await while_connected(receive, self._write(send))
            except Unavailable as error:
                if not self._started:
                    raise
                if not self._ended:
                    await self._send(send, self._last_words(error), more=False)

    async def _write(self, send: Send) -> None:
        self._upcoming = asyncio.ensure_future(self._next())
        try:
            while True:
                await asyncio.wait({self._upcoming}, timeout=self._ping)
                chunk = self._take(self._upcoming) if self._upcoming.done() else self._keepalive
                if chunk is None:
                    break
                if chunk is not self._keepalive:
                    self._upcoming = asyncio.ensure_future(self._next())
                await self._send(send, chunk, more=True)
            await self._send(send, b"", more=False)
        finally:
            await _cancel(self._upcoming)
            await self._events.aclose()

    def _last_words(self, error: OmlxError) -> bytes:
        """What was ready when the end came, and why nothing follows."""
        failed(error)
        ready = self._upcoming
        if ready is None or ready.cancelled() or ready.exception():
            return self._on_error(error)
        chunk = ready.result()
        return b"" if chunk is None else chunk + self._on_error(error)

    async def _next(self) -> bytes | None:
        return await anext(self._events, None)

    def _take(self, upcoming: asyncio.Future[bytes | None]) -> bytes | None:
        try:
            return upcoming.result()
        except OmlxError as error:
            if not self._started:
                raise
            failed(error)
            return self._on_error(error)

    async def _send(self, send: Send, chunk: bytes, *, more: bool) -> None:
        if not self._started:
            self._started = True
            self.headers.update(self._late_headers())
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
        self._ended = not more
        await send({"type": "http.response.body", "body": chunk, "more_body": more})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it has ended, however it ends."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
