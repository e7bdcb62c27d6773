"""Jobs on the mlx thread: slice by slice beside running streams, each ended for itself."""

import asyncio
import threading
import time
from concurrent.futures import Future
from itertools import pairwise

import pytest

from omlx_server.compute.score import score_prompt
from omlx_server.core.clients import CLIENT
from omlx_server.core.work import Work
from omlx_server.engine.client import engine_client
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.engine.turns import Jobs
from omlx_server.errors import QueueFull, Unavailable
from tests.compute.oracle import greedy
from tests.engine.running import Running, collect, request, until
from tests.tiny_models import load_tiny


class Counting:
    """A job of so many slices, which notes what happens to it."""

    def __init__(self, slices: int) -> None:
        self.slices = slices
        self.begun = 0
        self.closed = False
        self.threads: set[str] = set()

    def note(self) -> None:
        """In each slice, on the mlx thread."""

    def make(self, instance: ModelInstance) -> Work[str]:
        self.threads.add(threading.current_thread().name)
        return self._work()

    def _work(self) -> Work[str]:
        try:
            for _ in range(self.slices):
                self.begun += 1
                self.note()
                yield
        finally:
            self.closed = True
        return "done"


def test_a_job_gives_its_result() -> None:
    async def run() -> None:
        async with Running() as engine:
            jobs = [Counting(slices) for slices in (0, 1, 5)]
            results = await asyncio.gather(*(engine.work(job.make) for job in jobs))
            assert results == ["done"] * 3
            assert [job.begun for job in jobs] == [0, 1, 5]
            assert all(job.threads == {"mlx"} for job in jobs)

    asyncio.run(run())


def test_a_stream_goes_on_beside_a_long_job() -> None:
    async def run() -> None:
        async with Running() as engine:
            endless = Counting(1 << 40)
            job = asyncio.create_task(engine.work(endless.make))
            await until(lambda: endless.begun > 10)
            prompt = [1, 2, 3]
            answer = await collect(await engine.submit(request("x", prompt, 30)))
            assert answer == greedy(load_tiny("llama").model, prompt, 30)
            before = endless.begun
            await until(lambda: endless.begun > before)
            assert not job.done()
            job.cancel()
            await until(lambda: endless.closed)

    asyncio.run(run())


def test_jobs_take_turns() -> None:
    async def run() -> None:
        async with Running() as engine:
            endless, short = Counting(1 << 40), Counting(20)
            seen = list[int]()
            short.note = lambda: seen.append(endless.begun)  # type: ignore[method-assign]
            long_one = asyncio.create_task(engine.work(endless.make))
            await until(lambda: endless.begun > 0)
            assert await engine.work(short.make) == "done"
            assert {after - before for before, after in pairwise(seen)} == {1}
            long_one.cancel()

    asyncio.run(run())


def test_what_raises_in_a_job_is_its_own_end() -> None:
    def failing(instance: ModelInstance) -> Work[None]:
        yield
        raise ValueError("planted")

    def unmade(instance: ModelInstance) -> Work[None]:
        raise ValueError("never begun")

    async def run() -> None:
        async with Running() as engine:
            other = asyncio.create_task(engine.work(Counting(50).make))
            with pytest.raises(ValueError, match="planted"):
                await engine.work(failing)
            with pytest.raises(ValueError, match="never begun"):
                await engine.work(unmade)
            assert await other == "done"

    asyncio.run(run())


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_MAX_JOBS", 2)

    async def run() -> None:
        async with Running() as engine:
            jobs = [asyncio.create_task(engine.work(Counting(1 << 40).make)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await engine.work(Counting(1).make)
            jobs[0].cancel()
            await asyncio.sleep(0.01)
            assert await engine.work(Counting(1).make) == "done"
            jobs[1].cancel()

    asyncio.run(run())


def test_a_client_waits_for_no_more_slices_than_it_gets_itself() -> None:
    """A swarm has twenty jobs, and another client comes with one of five slices."""
    ran = list[bytes]()

    def job(client: bytes, slices: int) -> Work[None]:
        for _ in range(slices):
            ran.append(client)
            yield

    jobs = Jobs(lambda: float(len(ran)))  # a slice takes a second
    for _ in range(20):
        jobs.add(job(b"swarm", 50), Future(), b"swarm")
    for _ in range(7):
        jobs.run_slice()
    jobs.add(job(b"other", 5), answer := Future[object](), b"other")
    while not answer.done():
        jobs.run_slice()
    assert ran.count(b"swarm") <= 7 + 6
    jobs.end(Unavailable("over"))
    assert not len(jobs)


def test_a_swarm_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_MAX_JOBS", 4)

    async def run() -> None:
        async with Running() as engine:
            CLIENT.set(b"swarm")
            swarm = [asyncio.create_task(engine.work(Counting(1 << 40).make)) for _ in range(4)]
            await asyncio.sleep(0)
            with pytest.raises(QueueFull):
                await engine.work(Counting(1).make)
            CLIENT.set(b"other")
            assert await engine.work(Counting(1).make) == "done"
            for job in swarm:
                job.cancel()

    asyncio.run(run())


def test_when_the_engine_stops_nobody_waits() -> None:
    async def run() -> None:
        running = Running()
        engine = await running.__aenter__()
        endless = Counting(1 << 40)
        job = asyncio.create_task(engine.work(endless.make))
        await until(lambda: endless.begun > 0)
        await engine.stop()
        with pytest.raises(Unavailable):
            await job
        assert endless.closed
        with pytest.raises(Unavailable):
            await engine.work(Counting(1).make)

    asyncio.run(run())


def test_a_prompt_is_scored_beside_a_stream() -> None:
    async def run() -> None:
        async with Running() as engine:
            stream = await engine.submit(request("x", [1, 2, 3], 30))

            def score(instance: ModelInstance) -> Work[object]:
                loaded = instance.runner.loaded
                return score_prompt(loaded.model, loaded.dims.vocab, [5, 6, 7, 8], 1)

            scores, answer = await asyncio.gather(engine.work(score), collect(stream))
            assert isinstance(scores, list) and len(scores) == 3
            assert answer == greedy(load_tiny("llama").model, [1, 2, 3], 30)

    asyncio.run(run())


def test_who_has_left_before_an_answer_leaves_nothing_broken() -> None:
    """Questions and jobs that end, well or not, after nobody waits for them any more."""

    def slow(instance: ModelInstance) -> str:
        time.sleep(0.05)
        return "nobody hears it"

    def broken(instance: ModelInstance) -> Work[str]:
        time.sleep(0.05)
        raise ValueError("nobody hears it")

    async def run() -> None:
        async with Running() as engine:
            for _ in range(4):
                waits = [
                    asyncio.create_task(engine.ask(slow)),
                    asyncio.create_task(engine.work(broken)),
                ]
                await asyncio.sleep(0.01)
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
            answer = await collect(await engine.submit(request("x", [1, 2, 3], 3)))
            assert len(answer) == 3

    asyncio.run(run())
