"""A stream that the server has to end before its time: what was ready is sent, nothing is lost."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from starlette.types import Message

from omlx_server.api.http.sse import DONE, KEEPALIVE, EventStream, TextEvents, event


class Client:
    """Who reads the first event only, and then nothing until `reads` is set. As in uvicorn, nothing
    is written before the client has read what came before."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = False
        self.reads = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            if self.bodies:
                await self.reads.wait()
            self.bodies.append(message["body"])
            self.ended = not message["more_body"]

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


async def ended_early(events: AsyncGenerator[bytes, None]) -> Client:
    """The server ends while the second event is being sent, and the next may be ready."""
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


async def silent_later() -> AsyncGenerator[bytes, None]:
    yield b"one"
    yield b"two"
    await asyncio.Event().wait()


async def broken() -> AsyncGenerator[bytes, None]:
    yield b"one"
    yield b"two"
    raise OSError("a flaw")


def test_what_was_being_sent_and_what_was_ready_are_sent_before_the_end() -> None:
    bodies = asyncio.run(ended_early(counted(b"one", b"two", b"three", b"four"))).bodies
    assert len(bodies) == 2 and bodies[1].startswith(b"twothree") and bodies[1].endswith(DONE)
    assert b"shutting down" in bodies[1] and b"four" not in bodies[1]


@pytest.mark.parametrize("words", [(b"one",), (b"one", b"two")])
def test_a_stream_that_was_whole_ends_without_an_error(words: tuple[bytes, ...]) -> None:
    assert b"".join(asyncio.run(ended_early(counted(*words))).bodies) == b"".join(words)


@pytest.mark.parametrize(
    ("events", "sent"), [(silent, b""), (silent_later, b"two"), (broken, b"two")]
)
def test_whoever_gets_no_more_is_told_why(
    events: Callable[[], AsyncGenerator[bytes, None]], sent: bytes
) -> None:
    bodies = asyncio.run(ended_early(events())).bodies
    assert bodies[1].startswith(sent + b'data: {"error"') and b"shutting down" in bodies[1]


def test_a_silent_stream_is_kept_alive_and_loses_nothing() -> None:
    """Also when an event comes while a keep-alive is being sent."""

    async def slow() -> AsyncGenerator[bytes, None]:
        yield b"one"
        await asyncio.sleep(0.2)
        yield b"two"

    async def scene() -> list[bytes]:
        client = Client()
        stream = EventStream(slow(), 0.06)
        sending = asyncio.create_task(stream({"type": "http"}, client.receive, client.send))
        await asyncio.sleep(0.3)
        client.reads.set()
        await sending
        return client.bodies

    assert asyncio.run(scene()) == [b"one", KEEPALIVE, b"two", b""]


@pytest.mark.parametrize("text", ["", '"', "\\", 'a "" b', "naïve \u2028 \U0001f600\x00\n"])
def test_an_event_with_its_text_put_in_is_what_encoding_all_of_it_gives(text: str) -> None:
    def data(said: str) -> dict[str, object]:
        return {
            "id": "",
            "choices": [{"delta": {"content": said}, "logprobs": None}],
            "usage": None,
        }

    assert TextEvents(data("")).with_text(text) == event(data(text))
