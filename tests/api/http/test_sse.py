"""A stream that the server has to end before its time: what was ready is sent, nothing is lost."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from typing import Any

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


class Unreachable(Client):
    """To whom no keep-alive can be sent. The connection ends once that was tried."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = asyncio.Event()

    async def send(self, message: Message) -> None:
        if message.get("body") == KEEPALIVE:
            self.tried.set()
            raise OSError("no way there")
        await super().send(message)


class Disconnecting(Unreachable):
    """Whose end the server notices, too."""

    async def receive(self) -> Message:
        await self.tried.wait()
        return {"type": "http.disconnect"}


async def complaints_of(client: Client, events: AsyncGenerator[bytes, None]) -> list[Any]:
    """What asyncio complains of while a stream with many keep-alives is sent, and after its end."""
    complaints = list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    client.reads.set()
    try:
        await EventStream(events, 0.01)({"type": "http"}, client.receive, client.send)
    finally:
        gc.collect()
        await asyncio.sleep(0)
    return complaints


@pytest.mark.parametrize("more", [(), (b"two",)])
def test_a_keep_alive_that_fails_fails_its_stream_at_the_next_event_or_the_end(
    more: tuple[bytes, ...],
) -> None:
    async def scene() -> Client:
        client = Unreachable()

        async def after_a_try() -> AsyncGenerator[bytes, None]:
            yield b"one"
            await client.tried.wait()
            await asyncio.sleep(0.1)
            for word in more:
                yield word

        with pytest.raises(OSError, match="no way there"):
            await complaints_of(client, after_a_try())
        return client

    client = asyncio.run(scene())
    assert client.bodies == [b"one"] and not client.ended


def test_a_keep_alive_that_fails_as_the_client_leaves_troubles_nobody() -> None:
    async def scene() -> list[Any]:
        return await complaints_of(Disconnecting(), silent())

    assert asyncio.run(scene()) == []
