"""Streams of a server that are read and thrown away, so that the client takes little of the machine
whose server is measured: a socket for each, and no parser of HTTP."""

import json
import selectors
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import urlsplit

from scripts.benchmarks.response import BadResponse

_TIMEOUT_SECONDS = 120
_PIECE = 1 << 16
# The usage is in the last event but one.
_TAIL = 2048


@dataclass(frozen=True, slots=True)
class Streamed:
    """When a stream began and when its last bytes came, in seconds of time.perf_counter(), and the
    tokens that the server counted."""

    sent: float
    ended: float
    tokens: int


def stream_body(model: str, text: str, out: int) -> dict[str, object]:
    """The body of a chat that is streamed, in exactly `out` tokens, each decoded by itself."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": out,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "speculation": "off",
    }


def read_streams(url: str, bodies: Sequence[dict[str, object]]) -> list[Streamed]:
    """Post all these requests to a chat server at once, and read the streams to their ends. Raises
    BadResponse for one that breaks off, and OSError."""
    with selectors.DefaultSelector() as selector:
        streams = [_Stream(url, body) for body in bodies]
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        for stream in streams:
            stream.send()
        open_streams = len(streams)
        while open_streams:
            ready = selector.select(_TIMEOUT_SECONDS)
            if not ready:
                raise BadResponse(f"nothing came for {_TIMEOUT_SECONDS} s")
            for key, _ in ready:
                if key.data.read():
                    selector.unregister(key.fileobj)
                    open_streams -= 1
        return [stream.streamed() for stream in streams]


class _Stream:
    def __init__(self, url: str, body: dict[str, object]) -> None:
        where = urlsplit(url)
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._request = head.encode() + content
        self.socket = socket.create_connection((where.hostname, where.port), _TIMEOUT_SECONDS)
        self._tail = b""
        self._sent = self._ended = 0.0

    def send(self) -> None:
        self._sent = perf_counter()
        self.socket.sendall(self._request)

    def read(self) -> bool:
        """Read what has come. Returns whether the stream has ended."""
        piece = self.socket.recv(_PIECE)
        if not piece:
            self.socket.close()
            return True
        self._ended = perf_counter()
        self._tail = (self._tail + piece)[-_TAIL:]
        return False

    def streamed(self) -> Streamed:
        lines = self._tail.splitlines()
        told = [line for line in lines if line.startswith(b"data: {")]
        if b"data: [DONE]" not in lines or not told:
            raise BadResponse(f"a stream broke off: {self._tail!r}")
        usage = json.loads(told[-1].removeprefix(b"data: "))["usage"]
        return Streamed(self._sent, self._ended, usage["completion_tokens"])
