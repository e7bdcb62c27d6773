"""Heads that are too long or never end, bodies that pause, answers that nobody reads."""

import asyncio
import logging
import time

import pytest

from tests.api.http.place import (
    HEAD,
    LARGE,
    LARGEST,
    SHORT,
    SMALL_BUFFER,
    SOON,
    UNREAD,
    Place,
    play,
    refused,
    status,
    until,
)

# -- heads ---------------------------------------------------------------------------------------

TOO_LONG = {
    "one-value": (HEAD + b"X: " + b"v" * 5000 + b"\r\n\r\n",),
    "many-headers": (HEAD + b"A: b\r\n" * 1000 + b"\r\n",),
    "the-address": (b"GET /quick?" + b"q" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",),
    "a-name": (HEAD + b"N" * 5000 + b": v\r\n\r\n",),
    "without-an-end": (HEAD + b"X: " + b"v" * 5000,),
    "in-pieces-without-an-end": (HEAD, *[b"X: " + b"v" * 1000 + b"\r\n"] * 5),
    "far-too-long": (HEAD + b"X: " + b"v" * 3_000_000 + b"\r\n\r\n",),
    "blank-lines": (b"\r\n" * 3000,),
}


@pytest.mark.parametrize("parts", TOO_LONG.values(), ids=TOO_LONG)
def test_a_head_beyond_the_limit_is_refused(parts: tuple[bytes, ...]) -> None:
    async def scene(place: Place) -> None:
        refused(await place.ask(*parts, pause=0.01), 431, "headers_too_large")
        await place.serves()

    play(scene)


def test_a_head_within_the_limit_is_read() -> None:
    async def scene(place: Place) -> None:
        head = HEAD + b"Connection: close\r\nContent-Length: 2\r\nX: " + b"v" * 3900 + b"\r\n\r\n"
        assert status(await place.ask(head + b"ab")) == 200
        assert status(await place.ask(head[:2000], head[2000:] + b"ab", pause=0.05)) == 200

    play(scene)


def test_each_head_of_a_connection_has_the_limit_for_itself() -> None:
    async def scene(place: Place) -> None:
        one = HEAD + b"Content-Length: 3000\r\nX: " + b"v" * 3000 + b"\r\n\r\n" + b"b" * 3000
        last = HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n"
        for size in (1000, 2500, 100_000):
            whole = one * 5 + last
            parts = [whole[i : i + size] for i in range(0, len(whole), size)]
            assert (await place.ask(*parts, pause=0.005)).count(b"HTTP/1.1 200") == 6

    play(scene)


OVERHEADS = {
    "a-trailer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX: ",
    "an-extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n5;",
}


@pytest.mark.parametrize("start", OVERHEADS.values(), ids=OVERHEADS)
def test_what_is_no_body_does_not_grow_without_end(start: bytes) -> None:
    async def scene(place: Place) -> None:
        refused(await place.ask(start, *[b"v" * 1000] * 6, pause=0.01), 431, "headers_too_large")

    play(scene)


def test_a_trailer_is_no_header() -> None:
    async def scene(place: Place) -> None:
        head = b"POST /headers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        body = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Api-Key: other\r\n\r\n"
        answer = await place.ask(head + body)
        assert status(answer) == 200 and b"host" in answer
        assert b"other" not in answer

    play(scene)


def test_no_header_changes_the_address_of_a_client() -> None:
    async def scene(place: Place) -> None:
        head = b"POST /headers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        forged = b"X-Forwarded-For: 10.1.2.3\r\nContent-Length: 0\r\n\r\n"
        assert b'"client":"127.0.0.1"' in await place.ask(head + forged)

    play(scene)


def test_what_is_no_http_is_told_so_in_the_envelope(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(place: Place) -> None:
        for start in (
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET\r\n\r\n",
            HEAD + b"Content-Length: -5\r\n",
        ):
            refused(await place.ask(start), 400, None)
        await place.serves()

    with caplog.at_level(logging.INFO, "omlx_server.api.connections.connection_timeouts"):
        play(scene)
    told = [record.__dict__["fields"] for record in caplog.records if "fields" in record.__dict__]
    said = {"status": 400, "error": "invalid_request_error"}
    assert told == [{**said, "reason": "Invalid HTTP request received."}] * 3


# -- time ----------------------------------------------------------------------------------------

HALF_HEADS = (
    (HEAD,),
    (b"P",),
    tuple(bytes([byte]) for byte in HEAD + b"X: " + b"y" * 200),
    (b"GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD,),
)


def test_half_a_head_is_dropped() -> None:
    """However steadily it comes."""

    async def one(place: Place, parts: tuple[bytes, ...]) -> None:
        began = time.monotonic()
        answer = await place.ask(*parts, pause=0.05)
        assert 0.9 * SHORT < time.monotonic() - began < 10  # byte by byte it would be twelve
        refused(answer[answer.rindex(b"HTTP/1.1") :], 408, "request_timeout")

    async def scene(place: Place) -> None:
        await asyncio.gather(*(one(place, parts) for parts in HALF_HEADS))
        await place.serves()

    play(scene)


def test_nothing_at_all_is_dropped_without_a_word() -> None:
    nothing = ((b"",), (b"\r\n",), (b"GET /quick HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n"))

    async def scene(place: Place) -> None:
        for answer in await asyncio.gather(*(place.ask(*parts, pause=0.05) for parts in nothing)):
            assert b"408" not in answer

    play(scene)


HALF_BODIES = (
    (HEAD + b"Content-Length: 9\r\n\r\n",),
    (HEAD + b"Content-Length: 9\r\n\r\n{",),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n",),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n4",),
    (HEAD + b"Content-Length: 9000000\r\n\r\n", b"x" * 3_000_000),
)


def test_half_a_body_is_dropped() -> None:
    async def scene(place: Place) -> None:
        for answer in await asyncio.gather(*(place.ask(*parts) for parts in HALF_BODIES)):
            refused(answer, 408, "request_timeout")
        await place.serves()

    play(scene)


def test_a_body_may_take_its_time_while_it_moves() -> None:
    async def scene(place: Place) -> None:
        head = HEAD + b"Connection: close\r\nContent-Length: 12\r\n\r\n"
        answer = await place.ask(head, *[b"x"] * 12, pause=SHORT / 5)
        assert status(answer) == 200 and answer.endswith(b"\r\n\r\n12")

    play(scene)


def test_a_body_that_nobody_reads_is_dropped_too() -> None:
    async def scene(place: Place) -> None:
        head = b"POST /quick HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        for body in (b"", b"1234"):
            answer = await place.ask(head + body)
            assert status(answer) == 200 and answer.endswith(b"quick")

    play(scene)


@pytest.mark.parametrize("head", ["Connection: close\r\n", ""], ids=["close", "kept"])
def test_an_answer_that_comes_before_the_body_has_come_arrives(head: str) -> None:
    """The client reads it only after it has sent all."""

    async def scene(place: Place) -> None:
        start = (
            f"POST /quick HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {LARGEST}\r\n\r\n"
        )
        reader, writer = await place.connect()
        writer.write(start.encode())
        for _ in range(8):
            writer.write(b"x" * (LARGEST // 16))
            await asyncio.sleep(SHORT / 4)
        assert (await reader.read()).endswith(b"quick")

    play(scene)


def test_a_client_that_sends_on_after_its_answer_is_ended() -> None:
    async def scene(place: Place) -> None:
        _, writer = await place.connect()
        writer.write(b"POST /quick HTTP/1.1\r\nHost: a\r\nConnection: close\r\n")
        writer.write(b"Content-Length: 99999\r\n\r\n")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(SOON):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(SHORT / 10)

    play(scene)


@pytest.mark.parametrize("extra", [b"", HEAD, b"GET /quick HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_an_answer_may_take_its_time(extra: bytes) -> None:
    """Also while the next request, or half of it, waits."""

    async def scene(place: Place) -> None:
        head = b"POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
        reader, writer = await place.connect()
        writer.write(head + extra)
        async with asyncio.timeout(SOON + 4 * SHORT):
            first = await reader.readuntil(b"slept")
        assert status(first) == 200 and first.count(b"HTTP/1.1") == 1
        writer.close()

    play(scene)


def test_many_halves_are_dropped_and_others_are_served() -> None:
    async def scene(place: Place) -> None:
        halves = [HEAD] * 200 + [HEAD + b"Content-Length: 9\r\n\r\n{"] * 50
        asking = [asyncio.create_task(place.ask(half)) for half in halves]
        while not all(task.done() for task in asking):
            await place.serves()
            await asyncio.sleep(0.01)
        for task in asking:
            refused(await task, 408, "request_timeout")

    play(scene)


# -- answers that nobody reads -------------------------------------------------------------------


def test_a_stream_that_nobody_reads_is_ended_and_its_buffer_bounded() -> None:
    async def scene(place: Place) -> None:
        slow = [await place.connect(4096) for _ in range(5)]
        for _, writer in slow:
            writer.write(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: place.streams == 5)
        await until(lambda: place.streams == 0)
        # What the kernel takes on both sides, and what uvicorn keeps.
        assert place.written * 1000 < 5 * 2**20
        for _, writer in slow:
            writer.close()
        await place.serves()

    play(scene)


def test_a_stream_that_is_read_slowly_lives() -> None:
    async def scene(place: Place) -> None:
        reader, writer = await place.connect(4096)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        began = time.monotonic()
        while time.monotonic() - began < 3 * UNREAD:
            await reader.readexactly(16_384)
            await asyncio.sleep(SHORT / 10)
        assert place.streams == 1
        writer.close()
        await until(lambda: place.streams == 0)

    play(scene)


def test_a_large_answer_that_is_read_slowly_arrives() -> None:
    """It lies in the buffer as a whole, longer than the time limit."""

    async def scene(place: Place) -> None:
        reader, writer = await place.connect(SMALL_BUFFER)
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        began, got = time.monotonic(), 0
        while part := await reader.read(2**16):
            got += len(part)
            await asyncio.sleep(UNREAD / 160)
        assert got > len(LARGE)
        assert time.monotonic() - began > UNREAD
        writer.close()

    play(scene)


@pytest.mark.parametrize("kind", [b"", b"Connection: close\r\n"])
def test_an_answer_whose_end_is_never_taken_is_dropped(kind: bytes) -> None:
    """Nothing waits to write any more; only the buffer is not empty."""

    async def scene(place: Place) -> None:
        reader, writer = await place.connect(4096)
        writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n" + kind + b"\r\n")
        await asyncio.sleep(UNREAD + 0.5)  # the reader itself takes a few kilobytes
        got = 0
        async with asyncio.timeout(SOON):
            while part := await reader.read(2**20):
                got += len(part)
        assert got < len(LARGE)

    play(scene)


@pytest.mark.parametrize("kind", [b"", b"Connection: close\r\n"])
def test_the_last_bytes_of_an_answer_are_not_kept_for_ever(kind: bytes) -> None:
    async def scene(place: Place) -> None:
        _, writer = await place.connect(4096)
        writer.write(b"GET /brim HTTP/1.1\r\nHost: localhost\r\n" + kind + b"\r\n")
        await until(lambda: any(c.cycle and c.cycle.response_complete for c in place.connections()))
        await until(lambda: not place.connections())

    play(scene)


def test_who_pipelines_and_leaves_ends_the_request_at_work(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """uvicorn itself tells the last request only."""

    async def scene(place: Place) -> None:
        caplog.clear()
        _, writer = await place.connect()
        stream = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        writer.write(stream * 2)
        await until(lambda: place.streams == 1)
        writer.transport.abort()
        await until(lambda: place.streams == 0)
        await asyncio.sleep(0.05)
        assert place.streams == 0

    play(scene)
    assert not caplog.records, "it ends as any other, not by a failing write"
