"""Threads for work before the engine: clients take turns."""

import asyncio
import time

import pytest

from omlx_server.api.worker_threads import IsAbandoned, WorkerThreads


def test_a_client_with_many_jobs_does_not_keep_another_one_waiting() -> None:
    order = list[bytes]()

    async def one(threads: WorkerThreads, client: bytes) -> None:
        def work(_: IsAbandoned) -> None:
            time.sleep(0.01)
            order.append(client)

        await threads.run((client,), work)

    async def all_of_them() -> None:
        threads = WorkerThreads("test", 1)
        await asyncio.gather(*[one(threads, b"many") for _ in range(20)], one(threads, b"single"))

    asyncio.run(all_of_them())
    assert order.index(b"single") <= 2


def test_work_that_is_abandoned_is_told_and_waited_for_and_never_begins_if_it_waits() -> None:
    begun = list[int]()

    async def leave() -> tuple[bool, bool, int]:
        threads, told, loop = WorkerThreads("test", 1), asyncio.Event(), asyncio.get_running_loop()

        def work(is_abandoned: IsAbandoned) -> None:
            begun.append(1)
            loop.call_soon_threadsafe(told.set)
            while not is_abandoned():
                time.sleep(0.001)

        running = asyncio.create_task(threads.run((b"a",), work))
        waiting = asyncio.create_task(threads.run((b"a",), work))
        await told.wait()
        waiting.cancel()
        running.cancel()
        await asyncio.wait([running, waiting])
        return running.cancelled(), waiting.cancelled(), await threads.run((b"a",), lambda _: 7)

    assert asyncio.run(leave()) == (True, True, 7)
    assert begun == [1]


def test_errors_reach_the_caller() -> None:
    def work(_: IsAbandoned) -> None:
        raise ValueError("no")

    async def fail() -> None:
        await WorkerThreads("test", 1).run((b"",), work)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(fail())
