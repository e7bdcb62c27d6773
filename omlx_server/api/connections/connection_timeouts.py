"""One client's connection, with bounds that uvicorn does not have.

They bound the size of a request's head and its time, pauses in its body, and the time for which an
answer lies unread; uvicorn's options bound only idle time and numbers. A client that breaks a bound
loses its connection, after an error if its answer has not begun. Runs on the asyncio thread.

A client may end its side after its request. That looks like a closed connection, so until the
answer begins it is sent `100 Continue`, which fails on a closed one. HTTP/1.0 has no such probe:
there only an immediate answer is sent.
"""

import asyncio
import enum
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from omlx_server import clock
from omlx_server.api.connections.connections import (
    Connections,
    NoHttp,
    head_too_large,
    reply,
    too_many_connections,
)
from omlx_server.api.http.errors import error_response
from omlx_server.api.http.host import network_of
from omlx_server.errors import OmlxError, RequestTimeout

_log = logging.getLogger(__name__)
# The server reads on until this much silence: if it closed while the client is still sending, the
# kernel would reset the connection and the answer could be lost.
_LINGER_SECONDS = 1.0
# A client that takes fewer bytes in `write_seconds` counts as one that reads nothing.
_LEAST_TAKEN_BYTES = 16 * 2**10
# Pauses before the first probe of a half-closed client, and before later ones.
_FIRST_PROBE_SECONDS = 0.05
_LATER_PROBE_SECONDS = 5.0
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds of a connection."""

    header_bytes: int  # also of what comes between parts of a body: trailers, chunk extensions
    header_seconds: float
    body_seconds: float
    write_seconds: float  # of unread answers


class _Phase(enum.Enum):
    """The phases of a connection: what the server waits for, and how long."""

    IDLE = enum.auto()  # a request; the first one must begin within `header_seconds`
    HEAD = enum.auto()  # the blank line, for at most `header_seconds` from the first byte
    BODY = enum.auto()  # the body's last byte, with pauses of at most `body_seconds`
    GONE = enum.auto()  # the client's end: silence for `_LINGER_SECONDS`, `body_seconds` in all


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
        self._connections = connections
        self._phase = _Phase.IDLE
        # The request that is or was answered; uvicorn's `cycle` is the last of pipelined ones.
        self._answered_cycle: RequestResponseCycle | None = None
        self._problem: OmlxError | None = None
        # Bytes that came since the last end of a head, part of a body, or end of a message.
        self._unused_bytes = 0
        self._is_progress = False  # the bytes that are being parsed hold one of these
        self._read_timer = clock.Alarm(self.loop, self._on_silence)
        self._write_timer = clock.Alarm(self.loop, self._check_client_reads)
        self._unsent_bytes = 0
        self._probes = 0
        self._is_half_closed = False
        self._linger_until = 0.0

    # -- from the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._read_timer.start(self._limits.header_seconds)
        if not self._connections.open(self):
            transport.write(reply(too_many_connections()))
            self._linger()

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _Phase.GONE
        self._connections.close(self)
        self._read_timer.stop()
        self._write_timer.stop()
        self._tell_request_of_end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_gone:
            if clock.now() < self._linger_until:
                self._read_timer.start(_LINGER_SECONDS)
            return
        self._is_progress = False
        super().data_received(data)
        self._unused_bytes = 0 if self._is_progress else self._unused_bytes + len(data)
        self._expect_bytes()

    def eof_received(self) -> bool:  # type: ignore[override]
        self._is_half_closed = self._phase is _Phase.IDLE and self._is_answering
        if self._is_half_closed:
            self._read_timer.start(_FIRST_PROBE_SECONDS)
        return self._is_half_closed

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_client_reads()

    def resume_writing(self) -> None:
        self._write_timer.stop()
        super().resume_writing()
        if not self._is_answering:
            self._expect_client_reads()

    # -- from the parser ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        if not self._read_timer.is_running:
            self._read_timer.start(self._limits.header_seconds)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer must not become a header after the guard has looked.
        if self._phase is _Phase.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._limits.header_bytes:
            self._problem = head_too_large(self._limits.header_bytes)
            raise self._problem
        self._phase = _Phase.BODY
        self._is_progress = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._is_progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = _Phase.IDLE
        self._is_progress = True
        self._read_timer.stop()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse the request; uvicorn calls this when its parser has raised."""
        self._refuse(self._problem or NoHttp(msg))

    # -- from the request at work ------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered_cycle = cycle
        cycle.transport = self  # type: ignore[assignment]
        if not self._connections.begin_request(self, cycle.scope["path"]):
            app = error_response(too_many_connections(), cycle.scope["path"])
        elif cycle.scope["http_version"] == "1.0":
            app = partial(_run_for_http_1_0, app, cycle)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._expect_client_reads()
        if self._is_gone:
            return
        super().on_response_complete()
        if not self._is_answering:
            self._connections.mark_idle(self)
            if self._is_half_closed:
                self.transport.close()
            elif self._phase is _Phase.BODY:
                self._read_timer.start(self._limits.body_seconds)

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
    def _is_gone(self) -> bool:
        return self._phase is _Phase.GONE

    @property
    def _is_answering(self) -> bool:
        return self._answered_cycle is not None and not self._answered_cycle.response_complete

    def _expect_bytes(self) -> None:
        if self._is_gone:
            return
        if self._unused_bytes > self._limits.header_bytes:
            self._refuse(head_too_large(self._limits.header_bytes))
        elif self._phase is _Phase.BODY and self._is_answering:
            self._read_timer.start(self._limits.body_seconds)
        elif (self._unused_bytes or self._phase is _Phase.BODY) and not self._read_timer.is_running:
            self._read_timer.start(self._limits.header_seconds)

    def _on_silence(self) -> None:
        """End the connection, or wait on for an answer that needs no bytes."""
        in_body = self._phase is _Phase.BODY
        has_begun = self._answered_cycle is not None and self._answered_cycle.response_started
        # The request needs more of its body, and the server is ready to read it.
        is_body_late = in_body and not has_begun and not self.flow.read_paused
        if self._is_gone:
            self.transport.close()
        elif self._is_half_closed:
            self._send_probe()
        elif self._is_answering and not is_body_late:
            limits = self._limits
            self._read_timer.start(limits.body_seconds if in_body else limits.header_seconds)
        elif self._is_answering or self._phase is _Phase.HEAD:
            self._refuse(RequestTimeout("the request did not come to its end in time"))
        else:
            self.close()

    def _send_probe(self) -> None:
        """Check that a half-closed client is there: a second write to a closed one fails."""
        if self._answered_cycle is None or self._answered_cycle.response_started:
            return
        if self._answered_cycle.scope["http_version"] == "1.0":
            self.transport.close()
            return
        self.transport.write(_PROBE)
        self._probes += 1
        self._read_timer.start(_FIRST_PROBE_SECONDS if self._probes == 1 else _LATER_PROBE_SECONDS)

    def _expect_client_reads(self) -> None:
        """Look again after `write_seconds` whether the client takes what waits for it."""
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._write_timer.start(self._limits.write_seconds)

    def _check_client_reads(self) -> None:
        taken = self._unsent_bytes - self.transport.get_write_buffer_size()
        if taken >= min(self._unsent_bytes, _LEAST_TAKEN_BYTES):
            self._expect_client_reads()
        else:
            self.transport.abort()

    def _refuse(self, error: OmlxError) -> None:
        if self._is_answering and self._answered_cycle and self._answered_cycle.response_started:
            self.close()
            return
        code = error.code or error.kind
        fields = {"status": error.status, "error": code, "reason": error.reason}
        message = "a request that was not whole: %d, %s, %s"
        _log.info(message, *fields.values(), extra={"fields": fields})
        self.transport.write(reply(error))
        self._linger()

    def _linger(self) -> None:
        """Send no more, and discard what the client still sends."""
        self._phase = _Phase.GONE
        self._linger_until = clock.now() + self._limits.body_seconds
        self._tell_request_of_end()
        self._connections.mark_idle(self)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._read_timer.start(_LINGER_SECONDS)

    def _tell_request_of_end(self) -> None:
        """Tell the answered request that its client has gone; uvicorn tells only the last one."""
        if self._answered_cycle is not None and self._is_answering:
            self._answered_cycle.disconnected = True
            self._answered_cycle.message_event.set()


async def _run_for_http_1_0(
    app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run `app` without chunks and `100 Continue`: there the connection's end ends an answer."""
    cycle.waiting_for_100_continue = False
    has_length = True

    async def send_without_chunks(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            has_length = b"content-length" in names
            if not has_length:
                cycle.chunked_encoding = False
        elif not has_length:
            # uvicorn refuses more bytes than it expects.
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_without_chunks)
