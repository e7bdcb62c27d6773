"""One client's connection, with bounds that uvicorn does not have.

They bound the size of a request's head and its time, pauses in its body, and the time for which an
answer lies unread; uvicorn's options bound only idle time and numbers. A client that breaks a bound
loses its connection, after an error if its answer has not begun. Runs on the asyncio thread.

A client may end its side after its request. That looks like a closed connection, so until the
answer begins it is sent `100 Continue`, which fails on a closed one. HTTP/1.0 has no such probe:
there only an immediate answer is sent.

phase   lasts                                  the server ends it when
IDLE    between two requests                   the first request does not begin in `header_seconds`
HEAD    from its first byte to its blank line  it takes longer than `header_seconds`
BODY    from then to the body's last byte      no byte has come for `body_seconds`
GONE    after the server's last bytes          no byte has come for `_LINGER_SECONDS`, or
                                               `body_seconds` are over
"""

import asyncio
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from omlx_server.api.connections.connections import Connections, NoHttp, reply, too_large, too_many
from omlx_server.api.http.errors import response
from omlx_server.api.http.host import network_of
from omlx_server.errors import OmlxError, RequestTimeout

_log = logging.getLogger(__name__)
# The server reads on until this much silence: if it closed while the client is still sending, the
# kernel would reset the connection and the answer could be lost.
_LINGER_SECONDS = 1.0
# A client that takes fewer bytes in `write_seconds` counts as one that reads nothing.
_LEAST_READ = 16 * 2**10
# Pauses before the first probe of a half-closed client, and before later ones.
_PROBE_SECONDS = 0.05
_PROBE_AGAIN_SECONDS = 5.0
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds of a connection. `header_bytes` also bounds what comes between parts of a body
    (trailers, chunk extensions); `write_seconds` is for unread answers."""

    header_bytes: int
    header_seconds: float
    body_seconds: float
    write_seconds: float


class _Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    GONE = enum.auto()


class _Alarm:
    """A timer that can be started anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop, self._call = loop, call
        self._handle: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, self._ring)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._call()


class Connection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with ConnectionLimits."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._all = connections
        self._phase = _Phase.IDLE
        self._answered: RequestResponseCycle | None = None
        self._problem: OmlxError | None = None
        # Bytes that came since the last end of a head, part of a body, or end of a message.
        self._overhead = 0
        self._progress = False  # whether the bytes that are being parsed hold one of these
        self._reading = _Alarm(self.loop, self._on_silence)
        self._writing = _Alarm(self.loop, self._on_unread)
        self._unsent = 0
        self._probes = 0
        self._half_closed = False
        self._gone_by = 0.0

    # -- from the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading.start(self._limits.header_seconds)
        if not self._all.open(self):
            transport.write(reply(too_many()))
            self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.GONE
        self._all.close(self)
        self._reading.stop()
        self._writing.stop()
        self._abandon()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._gone:
            if self.loop.time() < self._gone_by:
                self._reading.start(_LINGER_SECONDS)
            return
        self._progress = False
        super().data_received(data)
        self._overhead = 0 if self._progress else self._overhead + len(data)
        self._expect_more()

    def eof_received(self) -> bool:  # type: ignore[override]
        self._half_closed = self._phase is _Phase.IDLE and self._answering
        if self._half_closed:
            self._reading.start(_PROBE_SECONDS)
        return self._half_closed

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        self._writing.stop()
        super().resume_writing()
        if not self._answering:
            self._watch_writing()

    # -- from the parser ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        if not self._reading.running:
            self._reading.start(self._limits.header_seconds)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer must not become a header after the guard has looked.
        if self._phase is _Phase.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.header_bytes:
            self._problem = too_large(self._limits.header_bytes)
            raise self._problem
        self._phase = _Phase.BODY
        self._progress = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _Phase.IDLE
        self._progress = True
        self._reading.stop()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request; uvicorn calls this when its parser has raised."""
        self._refuse(self._problem or NoHttp(msg))

    # -- from the request at work ------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        cycle.transport = self  # type: ignore[assignment]
        if not self._all.begin(self, cycle.scope["path"]):
            app = response(too_many(), cycle.scope["path"])
        elif cycle.scope["http_version"] == "1.0":
            app = partial(_without_chunks, app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._watch_writing()
        if self._gone:
            return
        super().on_response_complete()
        if not self._answering:
            self._all.rest(self)
            if self._half_closed:
                self.transport.close()
            elif self._phase is _Phase.BODY:
                self._reading.start(self._limits.body_seconds)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def close(self) -> None:
        """End the connection; the request's body may not be whole."""
        if self._phase is _Phase.BODY and not self.transport.is_closing():
            self._linger()
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        if self._phase is not _Phase.BODY:  # else `_on_silence` ends the connection
            super().timeout_keep_alive_handler()

    # -- from the other connections ----------------------------------------------------------

    @property
    def address(self) -> bytes:
        return network_of(self.client[0]) if self.client else b""

    @property
    def unread(self) -> int:
        return len(self.cycle.body) if self.cycle else 0

    def drop(self) -> None:
        self.transport.abort()

    # -- the bounds --------------------------------------------------------------------------

    @property
    def _gone(self) -> bool:
        return self._phase is _Phase.GONE

    @property
    def _answering(self) -> bool:
        return self._answered is not None and not self._answered.response_complete

    def _expect_more(self) -> None:
        if self._gone:
            return
        if self._overhead > self._limits.header_bytes:
            self._refuse(too_large(self._limits.header_bytes))
        elif self._phase is _Phase.BODY and self._answering:
            self._reading.start(self._limits.body_seconds)
        elif (self._overhead or self._phase is _Phase.BODY) and not self._reading.running:
            self._reading.start(self._limits.header_seconds)

    def _on_silence(self) -> None:
        """End the connection, or wait on for an answer that needs no bytes."""
        body = self._phase is _Phase.BODY
        begun = self._answered is not None and self._answered.response_started
        if self._gone:
            self.transport.close()
        elif self._half_closed:
            self._probe()
        elif self._answering and not (body and not begun and not self.flow.read_paused):
            self._reading.start(self._limits.body_seconds if body else self._limits.header_seconds)
        elif self._answering or self._phase is _Phase.HEAD:
            self._refuse(RequestTimeout("the request did not come to its end in time"))
        else:
            self.close()

    def _probe(self) -> None:
        """Check that a half-closed client is there: a second write to a closed one fails."""
        if self._answered is None or self._answered.response_started:
            return
        if self._answered.scope["http_version"] == "1.0":
            self.transport.close()
            return
        self.transport.write(_PROBE)
        self._probes += 1
        self._reading.start(_PROBE_SECONDS if self._probes == 1 else _PROBE_AGAIN_SECONDS)

    def _watch_writing(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent:
            self._writing.start(self._limits.write_seconds)

    def _on_unread(self) -> None:
        taken = self._unsent - self.transport.get_write_buffer_size()
        if taken >= min(self._unsent, _LEAST_READ):
            self._watch_writing()
        else:
            self.transport.abort()

    def _refuse(self, error: OmlxError) -> None:
        if self._answering and self._answered and self._answered.response_started:
            self.close()
            return
        code = error.code or error.kind
        fields = {"status": error.status, "error": code, "reason": error.reason}
        message = "a request that was not whole: %d, %s, %s"
        _log.info(message, error.status, code, error.reason, extra={"fields": fields})
        self.transport.write(reply(error))
        self._linger()

    def _linger(self) -> None:
        """Send no more, and discard what the client still sends."""
        self._phase = _Phase.GONE
        self._gone_by = self.loop.time() + self._limits.body_seconds
        self._abandon()
        self._all.rest(self)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._reading.start(_LINGER_SECONDS)

    def _abandon(self) -> None:
        """Tell the running request that its client has gone; uvicorn tells only the last of
        pipelined requests."""
        if self._answered is not None and self._answering:
            self._answered.disconnected = True
            self._answered.message_event.set()


async def _without_chunks(
    app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run `app` for HTTP/1.0, which has no chunks and no `100 Continue`: the connection's end ends
    an answer without a length."""
    cycle.waiting_for_100_continue = False
    measured = True

    async def plain(message: Message) -> None:
        nonlocal measured
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            measured = b"content-length" in names
            if not measured:
                cycle.chunked_encoding = False
        elif not measured:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, plain)
