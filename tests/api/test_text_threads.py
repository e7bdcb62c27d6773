"""Who waits for whom while prompts are encoded."""

import asyncio
import threading

from omlx_server.api.http import exchange
from omlx_server.api.text_threads import TextThreads

HUGE, LONG = 8 << 20, 200_000


def test_short_texts_never_wait_for_huge_ones() -> None:
    """Twelve huge ones that never end, and a long one: one of the huge ones is at work."""
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


def test_the_size_of_the_body_decides_and_the_exchange_comes_along() -> None:
    async def ask() -> tuple[str, str]:
        threads = TextThreads()
        exchange._CURRENT.set(exchange.Exchange("id"))
        small = await threads.run(lambda: threading.current_thread().name)
        exchange.current().body = HUGE
        large = await threads.run(lambda: threading.current_thread().name)
        assert await threads.run(exchange.current) is exchange.current()
        return small, large

    small, large = asyncio.run(ask())
    assert small.startswith("text-short") and large.startswith("text-huge")
