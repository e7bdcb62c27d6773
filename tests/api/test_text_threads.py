"""Who waits for whom while prompts are encoded."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest
from tokenizers import Encoding

from omlx_server.api.http import exchange
from omlx_server.api.worker_threads import TextThreads
from omlx_server.core.clients import CLIENT
from omlx_server.text.encoding.encoder import IN_TURN, PieceEncoder
from tests.text.encoding.backends import backend_of

HUGE, LONG = 8 << 20, 200_000
BATCHES = 60


async def run(threads: TextThreads, client: bytes, work: Callable[[], object], size: int) -> object:
    """Run `work` for a request of `client`. It is called in a task of its own."""
    exchange._CURRENT.set(exchange.Exchange("id"))
    CLIENT.set(client)
    return await threads.run(work, size=size)


def nothing_of(batch: Callable[[int], None], number: int) -> list[Encoding]:
    batch(number)
    return []


def encoded(batch: Callable[[int], None]) -> Callable[[], None]:
    """Work that encodes a text of many batches."""

    def work() -> None:
        for number in range(BATCHES):
            IN_TURN.get()(partial(nothing_of, batch, number))

    return work


def test_short_texts_never_wait_for_huge_ones() -> None:
    """Twelve huge ones of one client that never end: one of them is at work."""
    done, lock, started = threading.Event(), threading.Lock(), [0]

    def endless() -> None:
        with lock:
            started[0] += 1
        assert done.wait(60)

    async def ask() -> None:
        threads = TextThreads()
        huge = [asyncio.create_task(threads.run(endless, size=HUGE)) for _ in range(12)]
        while not started[0]:
            await asyncio.sleep(0.001)
        long = asyncio.create_task(threads.run(done.wait, 60, size=LONG))
        answers = [await threads.run(len, "seven 7") for _ in range(50)]
        assert answers == [7] * 50 and started[0] == 1
        for waiting in huge[6:]:
            waiting.cancel()
        await asyncio.gather(*huge[6:], return_exceptions=True)
        done.set()
        await asyncio.gather(*huge[:6], long)
        assert started[0] == 6, "who left while it waited is not encoded"

    asyncio.run(ask())


def test_clients_take_turns_between_the_batches_of_their_texts() -> None:
    """A client with 20 huge texts, and another one with one that comes later."""
    order = list[str]()

    async def ask() -> None:
        threads, begun = TextThreads(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def of_many(_: int) -> None:
            order.append("many")
            loop.call_soon_threadsafe(begun.set)
            threading.Event().wait(0.002)

        def of_one(_: int) -> None:
            order.append("one")
            threading.Event().wait(0.002)

        many = [asyncio.create_task(run(threads, b"a", encoded(of_many), HUGE)) for _ in range(20)]
        await begun.wait()
        await run(threads, b"b", encoded(of_one), HUGE)
        for task in many:
            task.cancel()
        await asyncio.wait(many)

    asyncio.run(ask())
    last = len(order) - order[::-1].index("one")
    assert order[:last].count("many") < 4 * BATCHES, "its batches did not wait for whole texts"


def test_a_text_for_which_nobody_waits_is_encoded_no_further() -> None:
    numbers = list[int]()

    async def ask() -> None:
        threads, begun, go_on = TextThreads(), asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def batch(number: int) -> None:
            numbers.append(number)
            if number == 3:
                loop.call_soon_threadsafe(begun.set)
                assert go_on.wait(60)

        task = asyncio.create_task(run(threads, b"a", encoded(batch), HUGE))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(ask())
    assert numbers == [0, 1, 2, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no niceness")
def test_only_what_is_done_without_the_gil_is_nice() -> None:
    """Who waits for a processor with the GIL in its hands keeps all other threads waiting. A long
    text is encoded in batches, no matter which pool its request is in."""
    text = "Hello world. " * 20_000
    expected = PieceEncoder(backend_of("byte_level")).ids(text)

    threads = TextThreads()

    async def ask() -> list[int]:
        return await threads.run(PieceEncoder(backend_of("byte_level")).ids, text)

    assert asyncio.run(ask()) == expected
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    others = [one for one in threading.enumerate() if one.name.startswith(("encoding", "text"))]
    nice = {
        (one.name.split("_")[0], os.getpriority(os.PRIO_PROCESS, one.native_id or 0))
        for one in others
    }
    assert {("encoding", min(19, own + 10)), ("text-short", own)} <= nice
    assert {priority for name, priority in nice if name.startswith("text")} == {own}


def test_the_size_of_the_body_decides_and_the_exchange_comes_along() -> None:
    async def ask() -> tuple[str, str]:
        threads = TextThreads()
        exchange._CURRENT.set(exchange.Exchange("id"))
        small = await threads.run(lambda: threading.current_thread().name)
        exchange.current_exchange().body = HUGE
        large = await threads.run(lambda: threading.current_thread().name)
        assert await threads.run(exchange.current_exchange) is exchange.current_exchange()
        return small, large

    small, large = asyncio.run(ask())
    assert small.startswith("text-short") and large.startswith("text-huge")
