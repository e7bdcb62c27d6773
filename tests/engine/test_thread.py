"""The mlx thread and its client, with real tiny models, real threads and planted faults."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.clock import now
from omlx_server.compute.caches import Caches
from omlx_server.compute.hardware import device
from omlx_server.compute.launched import Launched
from omlx_server.core.request import FinishReason, Request, RequestId, SamplingParams
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.step import Step
from omlx_server.engine.client.generation import Generation
from omlx_server.engine.messages import EngineState
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import DeadlineExceeded, InternalError, QueueFull, Unavailable
from tests.compute.oracle import greedy
from tests.engine.alone import Alone
from tests.engine.running import (
    CrashingScheduler,
    Running,
    collect,
    idle,
    make_instance,
    plain_instance,
    request,
    singly,
    until,
)
from tests.tiny_models import load_tiny

POISON = 66


class PoisonedModel(nn.Module):
    """Raises when it is fed the token POISON, as a broken input would make a model raise.

    `looks`: how wide inputs are that it looks at (1: decode steps only).
    """

    def __init__(self, inner: nn.Module, looks: Callable[[int], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self._looks = looks

    def __call__(self, tokens: mx.array, cache: Caches | None = None) -> mx.array:
        if self._looks(tokens.shape[1]) and bool((tokens == POISON).any().item()):
            raise ValueError("poison")
        logits: mx.array = self.inner(tokens, cache=cache)
        return logits

    def make_cache(self) -> Caches:
        caches: Caches = self.inner.make_cache()
        return caches


def poisoned_instance(looks: Callable[[int], bool]) -> Callable[[], ModelInstance]:
    def load() -> ModelInstance:
        loaded = load_tiny("llama")
        object.__setattr__(loaded, "model", PoisonedModel(loaded.model, looks))
        return make_instance(loaded)

    return load


@pytest.fixture(autouse=True, params=[True, False], ids=["CPU", "GPU"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test at both paces: first tokens are read at once on the CPU backend only."""
    monkeypatch.setattr(device, "is_cpu", lambda: request.param)


async def until_or(condition: Callable[[], bool], seconds: float) -> None:
    """The same, but it need not happen."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.001)


def test_answers_are_those_of_the_naive_loop() -> None:
    async def run() -> None:
        model = load_tiny("llama").model
        prompts = [[i + 1, i + 2, i + 3] * (i + 1) for i in range(10)]
        async with Running(lambda: plain_instance(SchedulerLimits(4, 20, 16, 64))) as engine:
            generations = [await engine.submit(request(f"r{i}", p)) for i, p in enumerate(prompts)]
            answers = await asyncio.gather(*map(collect, generations))
        assert answers == [greedy(model, prompt, 6) for prompt in prompts]

    asyncio.run(run())


@pytest.mark.parametrize("announced", [False, True])
def test_an_engine_at_rest_waits_for_requests_that_are_announced(
    announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx_server.engine.thread._GATHER_SECONDS", 10)  # machines are busy
    chunks = list[int]()
    launch = ModelInstance.launch

    def noted(instance: ModelInstance, step: Step) -> Launched:
        chunks.append(len(step.chunks))
        return launch(instance, step)

    monkeypatch.setattr(ModelInstance, "launch", noted)

    async def run() -> None:
        async def late(engine: Alone) -> Generation:
            with engine.preparing() if announced else nullcontext():
                await until_or(lambda: bool(chunks), 0.05 if announced else 5)
                return await engine.submit(request("late", [4, 5, 6]))

        async with Running() as engine:
            coming = asyncio.create_task(late(engine))
            await asyncio.sleep(0)
            first = await engine.submit(request("first", [1, 2, 3], 200))
            await asyncio.gather(collect(first), collect(await coming))
        assert chunks[0] == (2 if announced else 1)

    asyncio.run(run())


def test_a_closed_generation_leaves_the_batch() -> None:
    async def run() -> None:
        async with Running() as engine:
            generation = await engine.submit(request("long", [1, 2, 3], 4000))
            async for _ in generation:
                break
            await until(lambda: engine.status.load.running == 1)
            generation.close()
            await until(lambda: idle(engine))
            assert engine.open_requests == 0
            assert len(await collect(await engine.submit(request("next", [1, 2])))) == 6

    asyncio.run(run())


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    async def run() -> None:
        async with Running() as engine:
            running: list[Generation] = []
            with pytest.raises(QueueFull) as refused:
                for number in range(13):
                    running.append(await engine.submit(request(f"r{number}", [1, 2], 100_000)))
            assert 8 <= len(running) <= 12  # the queue, and what had left it for the batch
            assert refused.value.retry_after >= 1
            for generation in running:
                generation.close()
            await until(lambda: idle(engine))

    asyncio.run(run())


def test_a_deadline_ends_a_running_request() -> None:
    async def run() -> None:
        async with Running() as engine:
            late = request("late", [1, 2], 1_000_000, deadline=now() + 0.3)
            with pytest.raises(DeadlineExceeded):
                await collect(await engine.submit(late))
            await until(lambda: idle(engine))

    asyncio.run(run())


def test_poison_in_a_prompt_ends_that_request_only() -> None:
    async def run() -> None:
        model = load_tiny("llama").model
        async with Running(poisoned_instance(lambda width: width > 1)) as engine:
            good = await engine.submit(request("good", [1, 2, 3, 4], 40))
            bad = await engine.submit(request("bad", [5, POISON, 7, 8], 40))
            other = await engine.submit(request("other", [9, 10, 11, 12], 40))
            with pytest.raises(InternalError):
                await collect(bad)
            assert await collect(good) == greedy(model, [1, 2, 3, 4], 40)
            assert await collect(other) == greedy(model, [9, 10, 11, 12], 40)

    asyncio.run(run())


def test_poison_in_a_decode_step_is_traced_to_its_row_and_the_others_go_on() -> None:
    async def run() -> None:
        model = load_tiny("llama").model
        async with Running(poisoned_instance(lambda width: width == 1)) as engine:
            good = await engine.submit(request("good", [1, 2, 3, 4], 60))
            events = singly(good)
            first = [(await anext(events)).token for _ in range(3)]
            bad = await engine.submit(request("bad", [5, 6, 7, POISON], 40))
            with pytest.raises(InternalError):
                await collect(bad)
            rest = [event.token async for event in events]
            assert first + rest == greedy(model, [1, 2, 3, 4], 60)
            assert engine.status.state is EngineState.READY

    asyncio.run(run())


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> type[CrashingScheduler]:
    monkeypatch.setattr("omlx_server.engine.model_instance.Scheduler", CrashingScheduler)
    CrashingScheduler.crashes = 0
    return CrashingScheduler


def test_a_crash_of_the_loop_is_survived(crashing: type[CrashingScheduler]) -> None:
    async def run() -> None:
        model = load_tiny("llama").model
        async with Running() as engine:
            crashing.crashes = 1
            # Nothing of it had been computed when the loop crashed, so it keeps its place.
            waiting = await engine.submit(request("waiting", [1, 2, 3]))
            assert await collect(waiting) == greedy(model, [1, 2, 3], 6)
            started = await engine.submit(request("started", [1, 2, 3], 100_000))
            await anext(aiter(started))
            crashing.crashes = 1
            with pytest.raises(InternalError, match="restarted"):
                await collect(started)
            assert await collect(await engine.submit(request("after", [4, 5]))) == greedy(
                model, [4, 5], 6
            )

    asyncio.run(run())


def test_a_crash_while_a_request_is_taken_in_answers_it(
    crashing: type[CrashingScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(*_: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("planted")

    async def run() -> None:
        async with Running() as engine:
            monkeypatch.setattr(crashing, "add", add)
            with pytest.raises(InternalError, match="restarted"):
                await asyncio.wait_for(engine.submit(request("x", [1, 2])), 60)
            assert len(await collect(await engine.submit(request("y", [1, 2])))) == 6

    asyncio.run(run())


def test_three_crashes_in_a_minute_end_the_engine(crashing: type[CrashingScheduler]) -> None:
    async def run() -> None:
        running = Running()
        async with running as engine:
            crashing.crashes = 3
            with pytest.raises(InternalError):
                await collect(await engine.submit(request("x", [1, 2, 3])))
            await until(lambda: bool(running.failures))
            assert engine.status.state is EngineState.FAILED
            with pytest.raises(Unavailable):
                await engine.submit(request("y", [1]))

    asyncio.run(run())


def test_a_model_that_cannot_be_loaded_is_said_so() -> None:
    def load() -> ModelInstance:
        raise OSError("no such weights")

    async def run() -> None:
        failures: list[str] = []
        engine = Alone(load, failures.append)
        await engine.start()
        with pytest.raises(Unavailable, match="no such weights"):
            await engine.ready()
        await until(lambda: failures == ["no such weights"])
        with pytest.raises(Unavailable, match="no such weights"):
            await engine.submit(request("a", [1, 2, 3]))
        await engine.stop()

    asyncio.run(run())


def test_a_stuck_step_has_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release = threading.Event(), threading.Event()
    launch_chunks = ModelInstance.launch_chunks

    def stuck(instance: ModelInstance, launched: Launched) -> Any:
        entered.set()
        while not release.is_set():
            time.sleep(0.01)
        return launch_chunks(instance, launched)

    async def run() -> None:
        async with Running() as engine:
            monkeypatch.setattr(ModelInstance, "launch_chunks", stuck)
            generation = await engine.submit(request("x", [1, 2, 3]))
            await until(entered.is_set)
            beat = engine.status.beat
            await asyncio.sleep(1.2)  # at rest there is one each second
            assert engine.status.beat == beat
            release.set()
            await collect(generation)
            await until(lambda: engine.status.beat > beat)

    asyncio.run(run())


def test_an_idle_engine_has_one() -> None:
    async def run() -> None:
        async with Running() as engine:
            beat = engine.status.beat
            await until(lambda: engine.status.beat > beat)

    asyncio.run(run())


def test_stopping_leaves_nobody_waiting() -> None:
    async def run() -> None:
        async with Running() as engine:
            generation = await engine.submit(request("x", [1, 2, 3], 1_000_000))
            answer = asyncio.create_task(collect(generation))
            await until(lambda: engine.status.load.running == 1)
        with pytest.raises(InternalError, match="shutting down"):
            await answer

    asyncio.run(run())


def test_a_status_says_starting_until_the_model_is_warm() -> None:
    status = Alone(plain_instance, lambda problem: None).status
    assert status.state is EngineState.STARTING


def test_every_choice_ends_once() -> None:
    async def run() -> None:
        async with Running() as engine:
            several = Request(RequestId("n"), (1, 2, 3), SamplingParams(max_tokens=5, seed=3), n=6)
            ends = []
            async with await engine.submit(several) as generation:
                async for events in generation:
                    ends += [(event.index, event.finish) for event in events if event.finish]
            assert sorted(ends) == [(i, FinishReason.LENGTH) for i in range(6)]

    asyncio.run(run())


def test_an_engine_at_rest_gives_freed_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx_server.engine.thread._REST_SECONDS", 0.3)
    monkeypatch.setattr("omlx_server.engine.thread._IDLE_BEAT_SECONDS", 0.05)
    mx.set_cache_limit(1 << 25)  # another test may have taken the pool away

    async def run() -> None:
        async with Running() as engine:
            await collect(await engine.submit(request("r", range(1, 60))))
            assert await engine.ask(lambda _: mx.get_cache_memory()) > 0
            async with asyncio.timeout(60):
                while await engine.ask(lambda _: mx.get_cache_memory()):
                    await asyncio.sleep(0.05)

    asyncio.run(run())
