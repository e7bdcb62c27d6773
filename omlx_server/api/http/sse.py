"""Send server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omlx_server import clock
from omlx_server.api.http.client_gone import ClientGone, cancel_and_wait, while_connected
from omlx_server.api.http.errors import envelope
from omlx_server.api.http.exchange import note_client_left, note_failure
from omlx_server.errors import OmlxError, Unavailable

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"
_POLL_SECONDS = 0.05


def event(data: object) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


class TextEvents:
    """Events that differ in one text, the last empty string in `data`; the rest is encoded once."""

    def __init__(self, data: object) -> None:
        self._before, _, self._behind = event(data).rpartition(b'""')

    def with_text(self, text: str) -> bytes:
        return self._before + orjson.dumps(text) + self._behind


def named_events(*events: Mapping[str, Any]) -> bytes:
    """Return events named by the `type` in their data."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (data["type"].encode(), orjson.dumps(data)) for data in events
    )


class EventStream(Response):
    """Sends `events`, and `keepalive` after a silence, until the client disconnects.

    The status is sent with the first bytes, with `late_headers`. An error before becomes an HTTP
    error; later an OmlxError becomes an event by `on_error`, and the stream ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        keepalive_seconds: float,
        late_headers: Callable[[], Mapping[str, str]] = dict,
        *,
        on_error: Callable[[OmlxError], bytes] = lambda error: event(envelope(error)) + DONE,
        keepalive: bytes = KEEPALIVE,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._late_headers = late_headers
        del self.headers["content-length"]
        self._events = events
        self._keepalive_seconds = keepalive_seconds
        self._on_error = on_error
        self._keepalive = keepalive
        self._clock = clock.now
        self._sent_at = 0.0
        self._unsent: bytes | None = None  # the chunk that is being sent, or waits for that
        self._no_keepalive_under_way = asyncio.Event()
        self._no_keepalive_under_way.set()
        self._started = False
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._send_events(send))
        except ClientGone:
            note_client_left()
        except Unavailable as error:
            if not self._started:
                raise
            if not self._ended:
                await self._send_bytes(send, await self._final_bytes(error), more=False)
        finally:
            await self._events.aclose()

    async def _send_events(self, send: Send) -> None:
        keeper = asyncio.ensure_future(self._send_keepalives(send))
        try:
            async for chunk in self._events:
                _raise_error_of(keeper)
                await self._send_chunk(send, chunk)
        except OmlxError as error:
            if not self._started:
                raise
            note_failure(error)
            await self._send_chunk(send, self._on_error(error))
        finally:
            await cancel_and_wait(keeper)
        _raise_error_of(keeper)
        await self._send_chunk(send, b"", more=False)

    async def _send_chunk(self, send: Send, chunk: bytes, *, more: bool = True) -> None:
        self._unsent = chunk
        if not self._no_keepalive_under_way.is_set():
            await self._no_keepalive_under_way.wait()
        await self._send_bytes(send, chunk, more=more)
        self._unsent, self._sent_at = None, self._clock()

    async def _send_keepalives(self, send: Send) -> None:
        """Send keep-alives until `send` raises; `_send_events` raises that error too."""
        self._sent_at = self._clock()
        while True:
            silent_seconds = self._clock() - self._sent_at
            if silent_seconds < self._keepalive_seconds or self._unsent is not None:
                await asyncio.sleep(max(self._keepalive_seconds - silent_seconds, _POLL_SECONDS))
                continue
            self._no_keepalive_under_way.clear()
            try:
                await self._send_bytes(send, self._keepalive, more=True)
            finally:
                self._no_keepalive_under_way.set()
            self._sent_at = self._clock()

    async def _final_bytes(self, error: OmlxError) -> bytes:
        """Return the end of a stream that the shutdown cuts: the event whose `send` was cancelled,
        the next one if it is ready, and the error event."""
        note_failure(error)
        if self._unsent is None:  # then the wait for the next event was cancelled
            return self._on_error(error)
        next_event = asyncio.ensure_future(anext(self._events, None))
        await asyncio.wait({next_event}, timeout=0)
        await cancel_and_wait(next_event)
        if next_event.cancelled() or next_event.exception():
            return self._unsent + self._on_error(error)
        chunk = next_event.result()
        if chunk is None:  # the stream was at its end
            return self._unsent
        return self._unsent + chunk + self._on_error(error)

    async def _send_bytes(self, send: Send, chunk: bytes, *, more: bool) -> None:
        if not self._started:
            self._started = True
            self.headers.update(self._late_headers())
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
        await send({"type": "http.response.body", "body": chunk, "more_body": more})
        self._ended = not more


def _raise_error_of(task: asyncio.Future[Any]) -> None:
    """Raise the error with which a task has ended, if it has."""
    if task.done() and not task.cancelled():
        task.result()
