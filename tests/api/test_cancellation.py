"""Clients that leave: at any moment, streaming or not, they cost the others nothing."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson
import pytest

from tests.api.harness import (
    CHAT,
    ServerProcess,
    busy,
    stream_events,
    text_of,
    wait_for,
    wait_idle_soon,
)

REQUESTS = 100
TOKENS = 32


def raw_request(body: dict[str, Any]) -> bytes:
    content = orjson.dumps(body)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode(
        "ascii"
    ) + (content)


async def stay(url: httpx.URL, body: dict[str, Any]) -> str:
    """Send a request, read the whole answer; returns its text."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(raw_request(body))
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    if not body["stream"]:
        return text_of(orjson.loads(content))
    events = stream_events(unchunked(content).decode())
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


async def leave(url: httpx.URL, body: dict[str, Any], after: float, rude: bool) -> None:
    """Send a request, or half of it, and go away; `rude` means with a reset."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    request = raw_request(body)
    half = after < 0
    writer.write(request[: len(request) // 2] if half else request)
    await writer.drain()
    await asyncio.sleep(abs(after))
    if rude:
        writer.transport.abort()
    else:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    del reader


def unchunked(content: bytes) -> bytes:
    """A body without the frame of chunked transfer coding."""
    pieces = []
    while content:
        size, _, content = content.partition(b"\r\n")
        pieces.append(content[: int(size, 16)])
        content = content[int(size, 16) + 2 :]
    return b"".join(pieces)


async def crowd(server: ServerProcess, dice: random.Random) -> list[str]:
    """A hundred requests at once, of which half leave. Returns what the others got."""
    url = httpx.URL(server.url)
    staying, leaving = [], []
    for number in range(REQUESTS):
        words = "word " * dice.randrange(1, 60) if number % 4 > 1 else "Sing, canary."
        kind = {"max_tokens": TOKENS, "ignore_eos": True, "stream": bool(dice.getrandbits(1))}
        body = server.body(words, **kind)
        if number % 2:
            body |= {"n": dice.choice((1, 1, 3)), "max_tokens": 2000}
            moment = dice.choice((0.0, -0.01, dice.uniform(0, 0.05), dice.uniform(0, 1)))
            leaving.append(leave(url, body, moment, rude=bool(dice.getrandbits(1))))
        else:
            staying.append(
                stay(url, {**body, "messages": server.body("Sing, canary.")["messages"]})
            )
    answers, _ = await asyncio.gather(asyncio.gather(*staying), asyncio.gather(*leaving))
    return answers


def test_half_of_a_hundred_leave(tiny: ServerProcess) -> None:
    """The others get their whole, right text; the batch is empty afterwards; memory is back."""
    song = text_of(tiny.chat("Sing, canary.", max_tokens=TOKENS, ignore_eos=True))
    memory = []
    for number in range(3):
        answers = asyncio.run(crowd(tiny, random.Random(number)))
        assert answers == [song] * (REQUESTS // 2)
        wait_idle_soon(tiny)
        tiny.http.post(f"{tiny.url}/v1/cache/reset", json={}).raise_for_status()
        memory.append(tiny.memory)
    # A coarse look: the heap settles in the first rounds at a size that differs by 100 MB with its
    # fragmentation. What is alive is counted exactly in tests/compute/test_runner.py.
    assert memory[-1] - max(memory[:2]) < 256 << 20
    assert text_of(tiny.chat("Sing, canary.", max_tokens=TOKENS, ignore_eos=True)) == song
    assert "Traceback" not in tiny.log


@contextmanager
def occupied(server: ServerProcess) -> Iterator[None]:
    """A stream of eight rows is running."""
    body = server.body("A long story.", max_tokens=4000, ignore_eos=True, n=8, stream=True)
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, timeout=60) as response:
        lines = response.iter_lines()  # httpx would leave when this is collected
        next(lines)
        wait_for(lambda: server.load()["running"] == 8)
        yield


def leave_after(server: ServerProcess, **fields: Any) -> None:
    """httpx closes its connection on a timeout."""
    body = server.body("A long story.", max_tokens=4000, ignore_eos=True, n=8, **fields)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}{CHAT}", json=body, timeout=httpx.Timeout(60, read=0.3))


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_frees_its_rows_at_once(tiny: ServerProcess, stream: bool) -> None:
    if stream:
        with occupied(tiny):
            pass
    else:
        leave_after(tiny)
    wait_idle_soon(tiny)


def test_who_leaves_the_queue_is_never_computed(tiny: ServerProcess) -> None:
    with occupied(tiny):
        leave_after(tiny)
        wait_for(lambda: tiny.load()["waiting"] == 0)
        assert tiny.load()["running"] == 8
    wait_idle_soon(tiny)


def test_who_leaves_in_the_prefill_frees_its_place(tiny: ServerProcess) -> None:
    body = tiny.body("7" * 4000, n=8, max_tokens=50)
    for moment in (0.0, 0.002, 0.01, 0.03):
        asyncio.run(leave(httpx.URL(tiny.url), body, moment, rude=True))
    wait_idle_soon(tiny)


def test_a_choice_that_met_its_stop_string_leaves_the_batch(tiny: ServerProcess) -> None:
    """Its row is free while the other choices still run."""
    free = tiny.chat("Go", n=8, temperature=1, seed=5, max_tokens=30, ignore_eos=True)
    letter = next(c for c in text_of(free, 3) if c.isascii() and c.isalpha())
    fields = {"n": 8, "temperature": 1, "seed": 5, "max_tokens": 3000, "ignore_eos": True}
    body = tiny.body("Go", stop=letter, stream=True, **fields)
    with tiny.http.stream("POST", f"{tiny.url}{CHAT}", json=body) as response:
        lines = response.iter_lines()  # httpx would leave when this is collected
        while '"finish_reason":"stop"' not in next(lines):
            pass
        wait_for(lambda: busy(tiny.load()) < 8)
        assert busy(tiny.load()) > 0
    wait_idle_soon(tiny)
