"""A real server on a real socket with small limits, before an app that needs no model."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import orjson
import uvloop
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.connections.connection_timeouts import Connection, ConnectionLimits
from omlx_server.api.connections.connections import DEFAULT_DESCRIPTORS, Connections
from omlx_server.api.connections.server import HttpServer
from omlx_server.api.http import errors
from omlx_server.api.http.bodies import Bodies
from omlx_server.api.http.json_body import read_bytes
from omlx_server.api.http.sse import EventStream
from omlx_server.errors import OmlxError

SHORT = 0.4
UNREAD = 2 * SHORT  # client and server share a loop here, which may stall
SOON = 30.0  # the limits of time are a second or two, and the machine may be busy
STALL = SHORT / 4
TRIES = 5
LIMITS = ConnectionLimits(
    header_bytes=4096, header_seconds=SHORT, body_seconds=SHORT, write_seconds=UNREAD
)
SMALL_BUFFER = 64 * 2**10
HEAD = b"POST /body HTTP/1.1\r\nHost: localhost\r\n"
LARGEST = 2**24
LARGE = b"x" * LARGEST

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Place:
    """The app and the address of its server; `streams` counts those that are being written."""

    def __init__(self, descriptors: int) -> None:
        self.limit = Connections(descriptors)
        self.bodies = Bodies(LARGEST, 4 * SHORT)
        self.streams = 0
        self.written = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.server = HttpServer(self, 1, LIMITS, self.limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers: dict[str, Callable[[Request], Awaitable[ASGIApp]]] = {
            "/body": self._body,
            "/slow": self._slow,
            "/stream": self._stream,
            "/large": self._large,
            "/brim": self._brim,
            "/quick": self._quick,
            "/health": self._quick,
            "/headers": self._headers,
        }
        request = Request(scope, receive)
        try:
            response = await answers[scope["path"]](request)
        except OmlxError as error:
            response = errors.error_response(error, scope["path"])
        await response(scope, receive, send)

    async def connect(self, buffer: int = 0) -> Streams:
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, self.sock.getsockname())
        reader, writer = await asyncio.open_connection(sock=sock, limit=2**12)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        """All connections that a test has left open."""
        self.drop_all()
        await asyncio.sleep(0.01)

    def drop_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def ask(self, *parts: bytes, pause: float = 0.0) -> bytes:
        """Send these with pauses between them; all that comes back until the server closes."""
        reader, writer = await self.connect()
        async with asyncio.timeout(SOON + pause * len(parts)):
            answer = asyncio.create_task(reader.read())
            for part in parts:
                if answer.done():
                    break
                writer.write(part)
                await asyncio.sleep(pause)
            return await answer

    async def serves(self) -> None:
        """Raises unless a plain request is answered."""
        answer = await self.ask(HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nab")
        assert status(answer) == 200 and answer.endswith(b"\r\n\r\n2")

    async def _body(self, request: Request) -> ASGIApp:
        return Response(str(len(await self._read(request))))

    async def _read(self, request: Request) -> bytes:
        with self.bodies.begin(request.headers.get("x-api-key", "").encode()) as body:
            return await read_bytes(request, LARGEST, body)

    async def _slow(self, request: Request) -> ASGIApp:
        await self._read(request)
        await asyncio.sleep(3 * SHORT)
        return Response("slept")

    async def _quick(self, request: Request) -> ASGIApp:
        return Response("quick")

    async def _large(self, request: Request) -> ASGIApp:
        return Response(LARGE)

    async def _brim(self, request: Request) -> ASGIApp:
        return StreamingResponse(self._until_full())

    async def _until_full(self) -> AsyncGenerator[bytes, None]:
        """Until a little is left in the buffer, too little for a pause."""
        while not any(c.transport.get_write_buffer_size() for c in self.connections()):
            yield b"x" * 2000
            await asyncio.sleep(0)

    def connections(self) -> list[Connection]:
        """On the server's side."""
        return [c for c in self.server.server_state.connections if isinstance(c, Connection)]

    async def _headers(self, request: Request) -> ASGIApp:
        await self._read(request)
        told = {**request.headers, "client": request.client and request.client.host}
        return Response(orjson.dumps(told))

    async def _stream(self, request: Request) -> ASGIApp:
        return EventStream(self._events(), 60)

    async def _events(self) -> AsyncGenerator[bytes, None]:
        self.streams += 1
        try:
            while True:
                yield b"data: " + b"x" * 1000 + b"\n\n"
                self.written += 1
                await asyncio.sleep(0)
        finally:
            self.streams -= 1


def play(
    scene: Callable[[Place], Coroutine[Any, Any, None]], descriptors: int = DEFAULT_DESCRIPTORS
) -> None:
    """Client and server share a loop: what goes wrong when the machine has kept it from turning
    says nothing of the server, and is tried again."""
    for left in reversed(range(TRIES)):
        stalls = list[float]()
        try:
            uvloop.run(_timed(scene, stalls, descriptors))
            return
        except (AssertionError, OSError, EOFError, ValueError):
            if not left or max(stalls) < STALL:
                raise


async def _timed(
    scene: Callable[[Place], Coroutine[Any, Any, None]], stalls: list[float], descriptors: int
) -> None:
    watching = asyncio.create_task(_watch(stalls))
    try:
        async with serving(descriptors) as place, asyncio.timeout(120):
            await scene(place)
    finally:
        watching.cancel()


async def _watch(stalls: list[float]) -> None:
    """How late the loop is, again and again."""
    while True:
        asked = time.monotonic()
        await asyncio.sleep(0.01)
        stalls.append(time.monotonic() - asked)


@asynccontextmanager
async def serving(descriptors: int) -> AsyncIterator[Place]:
    place = Place(descriptors)
    task = asyncio.create_task(place.server.run_on(place.sock))
    while not place.server.started:
        await asyncio.sleep(0.01)
    try:
        yield place
    finally:
        await place.close()
        place.server.stop(0)
        await task


async def until(seen: Callable[[], bool], seconds: float = SOON) -> None:
    async with asyncio.timeout(seconds):
        while not seen():
            await asyncio.sleep(0.01)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def refused(answer: bytes, number: int, code: str | None) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status(head) == number
    assert b"content-type: application/json" in head and b"connection: close" in head
    error = orjson.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code and error["param"] is None
