"""One client takes what is scarce, as much of it as it gets, for some seconds each: connections,
bodies on their way, threads for texts and for images, and rows."""

import asyncio
import io
import resource
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx
import orjson
from PIL import Image

from tests.api.harness import CHAT, Json
from tests.api.long_texts import FORMS
from tests.campaigns.image_requests import data_url

Found: TypeAlias = Counter[int | str]
"""How often which status was answered, or what happened instead."""

Taking: TypeAlias = Coroutine[None, None, Found]

_LOCAL = "127.0.0.2"
"""The client has an address of its own where there is one: Linux has it, a Mac after
`ifconfig lo0 alias 127.0.0.2`."""
_PAUSE = 1.0
_BLANK_PAUSE = 3.0
_ANSWER = 400


@dataclass(frozen=True, slots=True)
class Presses:
    """How much is taken, each for `seconds`: so many idle `connections`; `bodies` of `body_bytes`
    of which the end comes blank by blank; `images` of `side` pixels squared at a time; texts of
    `text_bytes`; and answers of `_ANSWER` tokens, each of the numbers in `streams` at once."""

    seconds: float
    connections: int
    bodies: int
    body_bytes: int
    images: int
    side: int
    text_bytes: int
    streams: tuple[int, ...]


SMALL = Presses(1.0, 100, 12, 1_000_000, 4, 500, 200_000, (30,))
FULL = Presses(20.0, 3_000, 140, 31_000_000, 8, 7_000, 30_000_000, (30, 300))


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the names of a model and of one that takes images. `key` is the client's."""

    url: str
    model: str
    seeing: str
    key: str

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80


def press(target: Target, presses: Presses) -> Iterator[tuple[str, Found]]:
    """Take one after the other, and tell what was answered."""
    _raise_descriptors(presses.connections + 500)
    for name, taking in _all(target, presses):
        yield name, asyncio.run(taking())


def _all(target: Target, presses: Presses) -> Iterator[tuple[str, Callable[[], Taking]]]:
    yield f"{presses.connections} idle connections", lambda: _idle(target, presses)
    yield f"{presses.bodies} slow bodies", lambda: _slow_bodies(target, presses)
    yield "large texts", lambda: _repeated(target, presses, list(_texts(target, presses)))
    if target.seeing:
        images = _images(target, presses)
        yield f"{presses.images} images", lambda: _repeated(target, presses, images)
    answer = orjson.dumps(_chat(target.model, "Go on.", max_tokens=_ANSWER, stream=True))
    for count in presses.streams:
        yield f"{count} streams", partial(_repeated, target, presses, [(CHAT, answer)] * count)


def _raise_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


# --- Connections ----------------------------------------------------------------------------------

_Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connected(target: Target) -> _Connection:
    local = _local_address()
    address = (local, 0) if local else None
    return await asyncio.open_connection("127.0.0.1", target.port, local_addr=address)


async def _idle(target: Target, presses: Presses) -> Found:
    """Those that the server has closed are opened again, once a second."""
    found, open_ones = Found(), list[_Connection]()
    end = asyncio.get_running_loop().time() + presses.seconds
    while asyncio.get_running_loop().time() < end:
        for _ in range(presses.connections - len(open_ones)):
            try:
                open_ones.append(await _connected(target))
                found["opened"] += 1
            except OSError:
                found["refused"] += 1
        await asyncio.sleep(_PAUSE)
        closed = [one for one in open_ones if one[0].at_eof()]
        found["closed"] += len(closed)
        for _, writer in closed:
            writer.close()
        open_ones = [one for one in open_ones if not one[0].at_eof()]
    for _, writer in open_ones:
        writer.close()
    return found


async def _slow_bodies(target: Target, presses: Presses) -> Found:
    bodies = [_slow_body(target, presses) for _ in range(presses.bodies)]
    return Found(await asyncio.gather(*bodies))


async def _slow_body(target: Target, presses: Presses) -> int | str:
    """The status, or "closed" where none came, or "held" where it could go on to the end."""
    reader, writer = await _connected(target)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {target.key}\r\nContent-Length: {presses.body_bytes}\r\n\r\n"
    )
    answer = asyncio.create_task(reader.readline())

    async def send() -> None:
        writer.write(head.encode() + b" " * (presses.body_bytes - 1000))
        with suppress(OSError):
            while True:
                await writer.drain()
                await asyncio.sleep(_BLANK_PAUSE)
                writer.write(b" ")

    sending = asyncio.create_task(send())
    await asyncio.wait([answer], timeout=presses.seconds)
    for task in (sending, answer):
        task.cancel()
    writer.transport.abort()
    with suppress(OSError, asyncio.CancelledError):
        line = await answer
        return int(line.split()[1]) if line else "closed"
    return "held"


# --- Requests -------------------------------------------------------------------------------------


async def _repeated(
    target: Target, presses: Presses, requests: Sequence[tuple[str, bytes]]
) -> Found:
    """Send all requests at once, each again and again. Whoever is not answered in the end
    leaves."""
    found = Found()
    transport = httpx.AsyncHTTPTransport(
        limits=httpx.Limits(max_connections=None), local_address=_local_address()
    )
    headers = {"authorization": f"Bearer {target.key}", "content-type": "application/json"}

    async def again(http: httpx.AsyncClient, path: str, body: bytes) -> None:
        while True:
            try:
                reply = await http.post(f"{target.url}{path}", content=body)
                found[reply.status_code] += 1
            except httpx.HTTPError as error:
                found[type(error).__name__] += 1
            await asyncio.sleep(_PAUSE)  # as long as a 503 asks for at least

    async with httpx.AsyncClient(transport=transport, timeout=None, headers=headers) as http:
        with suppress(TimeoutError):
            async with asyncio.timeout(presses.seconds):
                await asyncio.gather(*[again(http, path, body) for path, body in requests])
    return found


@cache
def _local_address() -> str | None:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((_LOCAL, 0))
        return _LOCAL
    return None


def _chat(model: str, content: object, **fields: object) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


def _texts(target: Target, presses: Presses) -> Iterator[tuple[str, bytes]]:
    """In the place of a name, and of a prompt: what is slow to decode, and what is slow to
    encode."""
    size = presses.text_bytes
    for made in FORMS.values():
        yield CHAT, b'{"messages": [], "model": %b}' % made(size)
    for text in (" ", "a", "\N{GRINNING FACE}"):
        content = text * (size // len(text.encode()))
        yield "/tokenize", orjson.dumps({"model": target.model, "content": content})
    yield CHAT, orjson.dumps(_chat(target.model, "ab" * (size // 8)))


def _images(target: Target, presses: Presses) -> list[tuple[str, bytes]]:
    """Images of one colour: small files that take much memory."""
    requests = []
    for number in range(presses.images):
        file = io.BytesIO()
        Image.new("RGB", (presses.side, presses.side), (number, 80, 200)).save(file, "png")
        image = {"type": "image_url", "image_url": {"url": data_url(file.getvalue())}}
        requests.append((CHAT, orjson.dumps(_chat(target.seeing, [image], max_tokens=1))))
    return requests
