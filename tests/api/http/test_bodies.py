"""Bodies on their way: the bound of their bytes, who waits for room, who makes way; and a least
rate."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from omlx_server.api.http.bodies import SMALL, Bodies, RequestBody, TooManyBodies, most_body_bytes
from tests.api.http.place import HEAD, LARGEST, SHORT, Place, play, status, until

MB = 2**20
MOST = 100 * MB
LONG, BRIEF = 60.0, 0.1


class Crowd:
    """Bodies of several clients, under one bound of 100 MB."""

    def __init__(self, seconds: float, stack: ExitStack) -> None:
        self.all = Bodies(MOST, seconds)
        self._stack = stack
        self._reading: list[asyncio.Task[None]] = []

    def begin(self, client: str) -> RequestBody:
        return self._stack.enter_context(self.all.begin(client.encode()))

    async def large(self, client: str, size: int = 30 * MB) -> RequestBody:
        """A body that has room for `size` bytes and never comes to its end."""
        body, began = self.begin(client), asyncio.Event()
        task = asyncio.create_task(self._read(body, size, began))
        self._reading.append(task)
        waiting = asyncio.create_task(began.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            task.result()
        return body

    async def _read(self, body: RequestBody, size: int, began: asyncio.Event) -> None:
        async with body.receiving():
            await body.add(SMALL + 1, size)
            began.set()
            await asyncio.sleep(LONG)

    async def outcome(self, number: int) -> BaseException | None:
        task = self._reading[number]
        await asyncio.wait({task})
        return task.exception()

    def end(self) -> None:
        for task in self._reading:
            task.cancel()


def in_crowd(scene: Callable[[Crowd], Awaitable[None]], seconds: float = LONG) -> None:
    async def run() -> None:
        with ExitStack() as stack:
            crowd = Crowd(seconds, stack)
            async with asyncio.timeout(LONG):
                await scene(crowd)
            crowd.end()
            await asyncio.sleep(0)
        assert crowd.all.held == 0

    asyncio.run(run())


def test_the_bound_follows_the_memory() -> None:
    assert most_body_bytes(2 * 10**9) == 125_000_000
    assert most_body_bytes(10**12) == 256 * MB


def test_large_ones_leave_room_for_smaller_ones() -> None:
    async def scene(crowd: Crowd) -> None:
        await crowd.large("one")
        await crowd.large("one")
        with pytest.raises(TooManyBodies) as caught:
            await crowd.large("one")
        assert caught.value.status == 503 and caught.value.retry_after == 1
        await crowd.large("one", 10 * MB)
        await crowd.large("one", 5 * MB)
        small = crowd.begin("one")
        await small.add(SMALL, SMALL)
        assert crowd.all.refused == {"slow": 0, "full": 1, "cut": 0}

    in_crowd(scene, BRIEF)


def test_who_waits_goes_on_when_there_is_room() -> None:
    async def scene(crowd: Crowd) -> None:
        with crowd.all.begin(b"one") as first:
            await first.add(90 * MB, 90 * MB)
            later = asyncio.create_task(crowd.large("one"))
            await asyncio.sleep(0.05)
            assert not later.done()
        await later

    in_crowd(scene)


def test_who_holds_less_than_its_share_never_waits_for_who_holds_more() -> None:
    """The youngest body of the other one makes way."""

    async def scene(crowd: Crowd) -> None:
        await crowd.large("greedy", 50 * MB)
        await crowd.large("greedy", 25 * MB)
        await crowd.large("greedy", 12 * MB)
        await crowd.large("modest")
        made_way = await crowd.outcome(2), await crowd.outcome(1)
        assert all(isinstance(error, TooManyBodies) for error in made_way)
        assert crowd.all.refused["cut"] == 2
        with pytest.raises(TooManyBodies):
            await crowd.large("greedy")

    in_crowd(scene, 1.0)


def test_one_that_is_whole_is_not_cut() -> None:
    async def scene(crowd: Crowd) -> None:
        whole = crowd.begin("greedy")
        async with whole.receiving():
            await whole.add(90 * MB, 90 * MB)
        with pytest.raises(TooManyBodies):
            await crowd.large("modest")
        assert whole.taken == 90 * MB

    in_crowd(scene, BRIEF)


def test_one_alone_may_be_larger_than_all_may_be() -> None:
    async def scene(crowd: Crowd) -> None:
        await crowd.large("one", 2 * MOST)

    in_crowd(scene)


def test_not_too_many_of_one_client_wait() -> None:
    async def scene(crowd: Crowd) -> None:
        await crowd.large("one", 2 * MOST)
        waiting = [asyncio.create_task(crowd.large("one")) for _ in range(40)]
        await asyncio.sleep(0.1)
        assert sum(task.done() for task in waiting) == 8
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    in_crowd(scene)


def test_time_in_which_a_body_waits_for_room_does_not_count() -> None:
    async def scene(crowd: Crowd) -> None:
        body = crowd.begin("one")
        with crowd.all.begin(b"one") as first:
            await first.add(90 * MB, 90 * MB)
            async with body.receiving():
                loop = asyncio.get_running_loop()
                loop.call_later(0.7, first.replace_size, 0)
                loop.call_later(0.7, crowd.all._wake_those_with_room)
                await body.add(30 * MB, 30 * MB)
                await asyncio.sleep(0.7)

    in_crowd(scene, 1.0)


# -- over real connections -------------------------------------------------------------------------

BODY = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n"


def test_a_body_that_drips_is_ended() -> None:
    async def scene(place: Place) -> None:
        refused_ = await place.ask(BODY % 500, *[b" "] * 200, pause=SHORT / 5)
        assert status(refused_) == 408 and b"request_timeout" in refused_
        assert place.bodies.refused["slow"] == 1

    play(scene)


def test_the_bytes_of_slow_bodies_are_bounded_and_others_are_served() -> None:
    async def scene(place: Place) -> None:
        slow = [await place.connect() for _ in range(30)]
        for _, writer in slow:
            writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % LARGEST + b"x" * MB)
        await until(lambda: place.bodies.held > MB)
        await place.serves()
        most = place.bodies.held + place.limit.unread
        assert MB < most < 20 * MB
        for reader, _ in slow:  # at last also those that nothing more came of
            assert status(await reader.read()) in (408, 503)
        await until(lambda: place.bodies.held == 0)

    play(scene)


def test_what_a_body_is_when_it_is_decoded_counts_too() -> None:
    async def scene(place: Place) -> None:
        packed = zlib.compress(b"x" * LARGEST)
        head = b"Content-Encoding: deflate\r\n"
        held = []

        async def look() -> None:
            while True:
                held.append(max((body.taken for body in place.bodies._bodies), default=0))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        answers = await asyncio.gather(
            *(
                place.ask(BODY.replace(b"Host", head + b"Host") % len(packed) + packed)
                for _ in range(3)
            )
        )
        looking.cancel()
        assert all(status(answer) == 200 for answer in answers)
        assert max(held) == LARGEST

    play(scene)
