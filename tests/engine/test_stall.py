"""Requests that wait for nothing: planted faults of the bookkeeping, and what the engine does."""

import asyncio
import logging
import math
from typing import Any

import pytest

from omlx_server.compute.planning.model_shape import shape_of
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.memory.estimate import FlatPlanner
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import RequestId, TokenEvent
from omlx_server.core.scheduler import watchdog
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.scheduler.watchdog import Stalls
from omlx_server.core.step import SequenceId, Step
from omlx_server.core.work import Work
from omlx_server.engine.memory.account import MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import InternalError
from omlx_server.wiring.memory import make_watch
from tests.compute.oracle import greedy
from tests.engine.alone import Alone
from tests.engine.running import Running, collect, make_instance, request, singly, until
from tests.tiny_models import load_tiny

PROMPT = range(1, 40)
SHORT = 0.1


@pytest.fixture
def idle_turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One for each time that somebody was there and no step was planned. Looks come often."""
    seen, schedule = list[int](), Scheduler.schedule

    def counted(scheduler: Scheduler, now: float) -> Step | None:
        step = schedule(scheduler, now)
        if step is None and scheduler.has_work:
            seen.append(1)
        return step

    monkeypatch.setattr(Scheduler, "schedule", counted)
    monkeypatch.setattr("omlx_server.engine.thread._IDLE_BEAT_SECONDS", 0.01)
    return seen


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", SHORT)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the step_loop logs."""
    caplog.set_level(logging.ERROR, "omlx_server.engine.step_loop")
    return caplog


def stalls(engine: Alone) -> Stalls:
    return engine.whole.counted[""].stalls


def blocks_one_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first cache that is asked all prompts must wait, for ever."""
    blocked, must_wait = list[PrefixCache](), PrefixCache.must_wait

    def never(cache: PrefixCache, handle: PrefixHandle) -> bool:
        blocked.append(cache)
        return cache is blocked[0] or must_wait(cache, handle)

    monkeypatch.setattr(PrefixCache, "must_wait", never)


async def leave_a_claim(engine: Alone) -> None:
    """Somebody begins to read PROMPT and leaves, without giving back what was claimed."""

    def forget(instance: ModelInstance) -> None:
        handle = instance.cache.enter(tuple(PROMPT), b"", ())
        instance.cache.admit(handle)
        handle.claimed = []
        instance.cache.leave(handle)

    await engine.ask(forget)


def test_a_claim_that_was_never_given_back_blocks_for_ever_without_a_watchdog(
    idle_turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", math.inf)

    async def run() -> None:
        async with Running() as engine:
            await leave_a_claim(engine)
            answer = asyncio.create_task(collect(await engine.submit(request("w", PROMPT))))
            await until(lambda: len(idle_turns) > 50)
            assert not answer.done()
            assert engine.status.load.waiting == 1
            assert stalls(engine) == Stalls()
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.usefixtures("idle_turns", "quick")
def test_with_it_the_request_is_answered_and_logged_and_counted(
    told: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        model = load_tiny("llama").model
        async with Running() as engine:
            await leave_a_claim(engine)
            asked = [await engine.submit(request(f"w{n}", [*PROMPT, n])) for n in range(3)]
            answers = await asyncio.gather(*map(collect, asked))
            assert answers == [greedy(model, [*PROMPT, n], 6) for n in range(3)]
            await until(lambda: stalls(engine) == Stalls(restarted=1))
            await engine.ask(lambda instance: instance.check_invariants())
        head, *lines = told.messages
        assert "3 requests wait" in head and "start over" in head
        assert [line.split()[0] for line in lines] == ["w0", "w1", "w2"]
        for line in lines:
            assert "is waiting" in line and "39 tokens to read, 0 computed" in line
            assert "waits for a block that another prompt computes" in line

    asyncio.run(run())


@pytest.mark.usefixtures("idle_turns", "quick")
def test_who_has_written_something_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        model = load_tiny("llama").model
        async with Running() as engine:
            stream = await engine.submit(request("long", PROMPT, 300))
            events = singly(stream)
            first = [(await anext(events)).token for _ in range(5)]
            blocks_one_cache(monkeypatch)
            row = SequenceId(RequestId("long"), 0)
            await engine.ask(lambda instance: instance.scheduler.queues.preempt(row))
            rest = [event.token async for event in events]
            assert first + rest == greedy(model, PROMPT, 300)
            assert stalls(engine) == Stalls(restarted=1)

    asyncio.run(run())


@pytest.mark.usefixtures("idle_turns", "quick")
def test_where_a_new_start_does_not_help_they_end_with_an_error(
    monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        model = load_tiny("llama").model
        async with Running() as engine:
            monkeypatch.setattr(PrefixCache, "must_wait", lambda cache, handle: True)
            asked = [await engine.submit(request(f"w{n}", PROMPT)) for n in range(2)]
            ends = await asyncio.gather(*map(collect, asked), return_exceptions=True)
            assert [type(end) for end in ends] == [InternalError, InternalError]
            assert "nothing had moved" in str(ends[0])
            await until(lambda: stalls(engine) == Stalls(restarted=1, ended=1))
            assert sum("requests wait" in line for line in told.messages) == 2
            monkeypatch.undo()
            assert await collect(await engine.submit(request("next", PROMPT))) == greedy(
                model, PROMPT, 6
            )

    asyncio.run(run())


@pytest.mark.usefixtures("idle_turns", "quick")
def test_who_was_lost_ends_with_an_error_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    def lose(instance: ModelInstance) -> None:
        instance.scheduler.cancel(RequestId("lost"))

    async def run() -> None:
        model = load_tiny("llama").model
        async with Running() as engine:
            blocks_one_cache(monkeypatch)
            lost, kept = [await engine.submit(request(n, PROMPT)) for n in ("lost", "kept")]
            await engine.ask(lose)
            with pytest.raises(InternalError, match="lost"):
                await collect(lost)
            assert await collect(kept) == greedy(model, PROMPT, 6)
        assert any("lost is nowhere" in line for line in told.messages)

    asyncio.run(run())


@pytest.mark.usefixtures("idle_turns", "quick")
def test_a_read_that_never_comes_back_is_waited_for_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    enter = PrefixCache.enter

    def asks(cache: PrefixCache, *prompt: Any) -> PrefixHandle:
        monkeypatch.setattr(PrefixCache, "enter", enter)
        handle = cache.enter(*prompt)
        handle.question = 7  # of which nobody knows
        return handle

    async def run() -> None:
        model = load_tiny("llama").model
        async with Running() as engine:
            monkeypatch.setattr(PrefixCache, "enter", asks)
            answer = asyncio.create_task(collect(await engine.submit(request("w", PROMPT))))
            begun = engine.status.beat
            await until(lambda: engine.status.beat > begun + 5 * SHORT)
            assert stalls(engine) == Stalls() and not answer.done()
            monkeypatch.setattr(watchdog, "LONGEST_READ_SECONDS", SHORT)
            assert await answer == greedy(model, PROMPT, 6)
            assert stalls(engine) == Stalls(restarted=1)
        assert "waits for the cold tier" in told.messages[1]

    asyncio.run(run())


@pytest.mark.usefixtures("quick")
def test_nobody_is_restarted_while_a_model_is_loaded(
    idle_turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Running() as engine:
            blocks_one_cache(monkeypatch)
            answer = asyncio.create_task(collect(await engine.submit(request("w", PROMPT))))
            loaded, slices = asyncio.Event(), 0

            def loading() -> Work[ModelInstance]:
                nonlocal slices
                while not loaded.is_set():
                    slices += 1
                    yield
                raise OSError("no such weights")

            coming = asyncio.create_task(engine.whole.load(loading(), lambda problem: None))
            await until(lambda: slices > 0)
            begun = engine.status.beat
            await until(lambda: engine.status.beat > begun + 5 * SHORT)
            assert stalls(engine) == Stalls() and not answer.done()
            loaded.set()
            await asyncio.gather(coming, return_exceptions=True)
            assert len(await answer) == 6
            assert stalls(engine) == Stalls(restarted=1)

    asyncio.run(run())


@pytest.mark.usefixtures("quick")
def test_who_waits_for_the_memory_of_a_job_waits_as_long_as_it_works(
    idle_turns: list[int],
) -> None:
    account = MemoryAccount(0)

    def load() -> ModelInstance:
        loaded = load_tiny("llama")
        share = account.share(loaded.weight_bytes)
        share.set_weights(loaded.weight_bytes)
        account.limit = loaded.weight_bytes + (1 << 24)
        return make_instance(
            loaded, watch=make_watch(share, FlatPlanner(shape_of(loaded), 1 << 16))
        )

    async def run() -> None:
        done = False

        def job(instance: ModelInstance) -> Work[None]:
            account.set_aside += 1 << 24
            while not done:
                yield
            account.set_aside -= 1 << 24

        async with Running(load, account) as engine:
            working = asyncio.create_task(engine.work(job))
            await until(lambda: account.set_aside > 0)
            answer = asyncio.create_task(collect(await engine.submit(request("w", PROMPT))))
            await until(lambda: bool(idle_turns))
            begun = engine.status.beat
            await until(lambda: engine.status.beat > begun + 5 * SHORT)
            assert stalls(engine) == Stalls() and not answer.done()
            done = True
            await working
            assert len(await answer) == 6
            assert stalls(engine) == Stalls()

    asyncio.run(run())


def test_the_account_of_a_restarted_model_is_empty_afterwards(
    idle_turns: list[int], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches of those that were read in part are given back."""

    async def run() -> None:
        async with Running() as engine:
            stream = await engine.submit(request("long", PROMPT, 50))
            events = singly(stream)
            await anext(events)
            blocks_one_cache(monkeypatch)
            row = SequenceId(RequestId("long"), 0)
            await engine.ask(lambda instance: instance.scheduler.queues.preempt(row))
            seen: list[TokenEvent] = [event async for event in events]
            assert seen[-1].finish is not None
            await until(lambda: stalls(engine) == Stalls(restarted=1))
            assert await engine.ask(lambda instance: instance.runner.idle)
            assert await engine.ask(lambda instance: instance.ledger().live) == 0

    asyncio.run(run())
