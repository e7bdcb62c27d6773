"""Clients that end their side of the connection after the request, and those that are gone."""

import asyncio
import socket

import pytest

from tests.api.http.place import SHORT, SOON, Place, play, until

SLOW = b"POST /slow HTTP/%s\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
QUICK = b"GET /quick HTTP/%s\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def ask_and_end(place: Place, request: bytes) -> bytes:
    reader, writer = await place.connect()
    writer.write(request)
    writer.write_eof()
    async with asyncio.timeout(SOON):
        return await reader.read()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_answer_that_comes_at_once_is_sent_plainly(version: bytes) -> None:
    async def scene(place: Place) -> None:
        answer = await ask_and_end(place, QUICK % version)
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"quick")
        assert not place.connections()

    play(scene)


def test_an_answer_that_takes_long_is_sent_and_the_connection_ended() -> None:
    async def scene(place: Place) -> None:
        answer = await ask_and_end(place, SLOW % b"1.1")
        rest = answer.replace(CONTINUE, b"")
        assert rest.startswith(b"HTTP/1.1 200") and rest.endswith(b"slept")
        assert answer.startswith(CONTINUE * 2) and rest.count(b"HTTP/1.1") == 1

    play(scene)


def test_all_of_a_pipeline_are_answered() -> None:
    async def scene(place: Place) -> None:
        answer = await ask_and_end(place, SLOW % b"1.1" + QUICK % b"1.1")
        assert answer.replace(CONTINUE, b"").count(b"HTTP/1.1 200") == 2
        assert answer.endswith(b"quick")

    play(scene)


def test_a_stream_goes_on() -> None:
    async def scene(place: Place) -> None:
        reader, writer = await place.connect()
        writer.write(STREAM)
        writer.write_eof()
        for _ in range(100):
            await reader.readexactly(16_384)
        assert place.streams == 1
        writer.transport.abort()
        await until(lambda: place.streams == 0)

    play(scene)


@pytest.mark.parametrize("request_", [SLOW % b"1.1", SLOW % b"1.0", STREAM])
def test_who_has_closed_is_noticed_soon(request_: bytes) -> None:
    """Also where the answer has not begun, and nothing of it is sent."""

    async def scene(place: Place) -> None:
        with socket.create_connection(place.sock.getsockname()) as client:
            client.sendall(request_)
            await until(lambda: place.server.under_way == 1)
        await until(lambda: not place.connections(), 2.5 * SHORT)

    play(scene)


def test_half_a_request_is_no_request() -> None:
    async def scene(place: Place) -> None:
        assert await ask_and_end(place, (SLOW % b"1.1")[:-1]) == b""
        assert await ask_and_end(place, (QUICK % b"1.1")[:-2]) == b""
        assert await ask_and_end(place, b"") == b""

    play(scene)
