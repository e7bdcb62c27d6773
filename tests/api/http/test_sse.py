"""A stream that the server has to end before its time: what was ready is sent, nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from omlx_server.api.http.sse import DONE, EventStream


class Client:
    """Who reads the first event only, and then nothing until `reads` is set."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = False
        self.reads = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.ended = not message["more_body"]
            if message["more_body"]:
                await self.reads.wait()

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


async def ended_early(events: AsyncGenerator[bytes, None]) -> Client:
    """The server ends while the first event is being sent, and the next may be ready."""
    client = Client()
    stream = asyncio.create_task(
        EventStream(events, 60)({"type": "http"}, client.receive, client.send)
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert client.bodies == [b"one"]
    stream.cancel()
    client.reads.set()
    await stream
    assert client.ended
    return client


async def counted(*words: bytes) -> AsyncGenerator[bytes, None]:
    for word in words:
        yield word


async def silent() -> AsyncGenerator[bytes, None]:
    yield b"one"
    await asyncio.Event().wait()


async def broken() -> AsyncGenerator[bytes, None]:
    yield b"one"
    raise OSError("a flaw")


def test_what_was_ready_is_sent_before_the_end() -> None:
    bodies = asyncio.run(ended_early(counted(b"one", b"two", b"three"))).bodies
    assert len(bodies) == 2 and bodies[1].startswith(b"two") and bodies[1].endswith(DONE)
    assert b"shutting down" in bodies[1]


def test_a_stream_that_was_whole_ends_without_an_error() -> None:
    assert b"".join(asyncio.run(ended_early(counted(b"one"))).bodies) == b"one"


@pytest.mark.parametrize("events", [silent, broken])
def test_whoever_gets_no_more_is_told_why(events) -> None:  # type: ignore[no-untyped-def]
    bodies = asyncio.run(ended_early(events())).bodies
    assert bodies[1].startswith(b'data: {"error"') and b"shutting down" in bodies[1]
