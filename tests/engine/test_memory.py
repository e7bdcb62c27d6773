"""Memory that runs short under a real engine: allocations that fail, limits that shrink."""

import asyncio
import gc
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from omlx_server.compute.caches import Caches
from omlx_server.compute.hardware import device, heap
from omlx_server.core.memory.guard import Relief
from omlx_server.core.request import TokenEvent
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.engine.memory.account import Audit, MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import InternalError, NoMemory
from tests.compute.oracle import greedy, is_greedy
from tests.engine.alone import Alone
from tests.engine.running import Running, collect, idle, make_instance, request, some, until
from tests.engine.watched import oracle, watched_instance
from tests.tiny_models import load_tiny

LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=8, prefill_chunk_tokens=16, max_batched_tokens=64
)
PROMPTS = [[5, 9, 2, 7, 1, 3], [8, 8, 4, 6, 2, 9], [3, 1, 4, 1, 5, 9]]


class StarvedModel(nn.Module):
    """Fails to allocate in the forward that a test asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner = inner
        self.fails: Callable[[mx.array], None] = lambda tokens: None

    def __call__(self, tokens: mx.array, cache: Caches | None = None) -> mx.array:
        self.fails(tokens)
        logits: mx.array = self.inner(tokens, cache=cache)
        return logits

    def make_cache(self) -> Caches:
        caches: Caches = self.inner.make_cache()
        return caches


class Fails:
    """Once, in the `nth` forward of those that are as `wide` as wanted."""

    def __init__(self, nth: int, *, prefill: bool, by_mlx: bool) -> None:
        self._left = nth
        self._prefill = prefill
        self._by_mlx = by_mlx

    def __call__(self, tokens: mx.array) -> None:
        if (tokens.shape[1] > 1) != self._prefill:
            return
        self._left -= 1
        if self._left != 0:
            return
        if self._by_mlx:  # its CPU backend dies where its GPU backends say this
            raise RuntimeError("[malloc] Unable to allocate 85899345920 bytes.")
        np.empty(1 << 60, dtype=np.uint8)


def starved_instance(models: list[StarvedModel]) -> Callable[[], ModelInstance]:
    def load() -> ModelInstance:
        loaded = load_tiny("llama")
        models.append(StarvedModel(loaded.model))
        object.__setattr__(loaded, "model", models[0])
        return make_instance(loaded, LIMITS)

    return load


def test_thirty_allocations_that_fail_cost_the_newest_request_each_but_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omlx_server.engine.thread._GATHER_SECONDS", 10)  # machines are busy

    async def run() -> None:
        models: list[StarvedModel] = []
        async with Running(starved_instance(models)) as engine:
            for number in range(30):
                prefill = number % 3 == 0
                nth = 1 if prefill else 1 + number % 5
                models[0].fails = Fails(nth, prefill=prefill, by_mlx=number % 2 == 0)
                await one_round(engine, models[0].inner, number)
            await until(lambda: idle(engine))
            await engine.ask(lambda instance: instance.check_invariants())
            assert await engine.ask(lambda instance: instance.runner.idle)

    asyncio.run(run())


async def one_round(engine: Alone, model: nn.Module, number: int) -> None:
    prompts = [[number + 1, *prompt] for prompt in PROMPTS]  # not in the cache
    with engine.preparing():  # so that all of them are read together
        generations = [
            await engine.submit(request(f"r{number}-{i}", prompt))
            for i, prompt in enumerate(prompts)
        ]
    answers = await asyncio.gather(*map(collect, generations), return_exceptions=True)
    right = [greedy(model, prompt, 6) for prompt in prompts]
    if number == 0:  # memory is given back
        assert answers == right
        return
    assert isinstance(answers[2], NoMemory), f"round {number}: {answers}"
    assert answers[:2] == right[:2], f"round {number}"


def test_who_is_alone_ends_when_memory_is_missing_again_and_the_next_is_served() -> None:
    async def run() -> None:
        models: list[StarvedModel] = []
        async with Running(starved_instance(models)) as engine:
            models[0].fails = Fails(2, prefill=False, by_mlx=True)
            answer = await collect(await engine.submit(request("first", PROMPTS[1])))
            assert answer == greedy(models[0].inner, PROMPTS[1], 6)
            models[0].fails = Fails(2, prefill=False, by_mlx=True)
            with pytest.raises(NoMemory, match="not enough memory"):
                await collect(await engine.submit(request("a", PROMPTS[0])))
            answer = await collect(await engine.submit(request("b", PROMPTS[0])))
            assert answer == greedy(models[0].inner, PROMPTS[0], 6)

    asyncio.run(run())


def test_other_errors_are_not_taken_for_missing_memory() -> None:
    class Broken(Fails):
        is_short = True

        def __call__(self, tokens: mx.array) -> None:
            if tokens.shape[1] > 1:
                self.is_short = tokens.shape[1] < 10  # a trial
            elif not self.is_short:
                raise ValueError("shapes do not fit")

    async def run() -> None:
        models: list[StarvedModel] = []
        async with Running(starved_instance(models)) as engine:
            models[0].fails = Broken(1, prefill=False, by_mlx=False)
            with pytest.raises(InternalError, match="ValueError while generating"):
                await collect(await engine.submit(request("a", PROMPTS[0] * 5)))

    asyncio.run(run())


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_used() -> None:
    """What tests before these have left, frozen or not, would be weights here until it is freed."""
    heap.collect_cycles()
    heap.freeze()


def shrink(room: int) -> Callable[[ModelInstance], None]:
    def act(instance: ModelInstance) -> None:
        assert instance.watch is not None
        instance.watch.share.account.limit = instance.watch.guard.ledger.weights + room

    return act


def test_a_preempted_request_goes_on_as_if_nothing_had_been() -> None:
    """Two rows run; there is room for one suddenly, and for two again later."""

    async def run() -> None:
        model = oracle().model
        prompts = [[i + 1, i + 2, i + 3] * 20 for i in range(2)]
        async with Running(watched_instance(8 << 20)) as engine:
            both = [await engine.submit(request(f"r{i}", p, 400)) for i, p in enumerate(prompts)]
            begun = await some(both[1], 20)
            await engine.ask(shrink(3 << 20))
            await until(lambda: engine.status.load.waiting == 1)
            await engine.ask(shrink(8 << 20))
            answers = await asyncio.gather(*map(collect, both))
            preempted = await engine.ask(
                lambda instance: instance.watch and instance.watch.guard.used
            )
        assert preempted and preempted[Relief.PREEMPT] == 1
        for prompt, answer in zip(prompts, (answers[0], begun + answers[1]), strict=True):
            assert len(answer) == 400 and is_greedy(model, prompt, answer)

    asyncio.run(run())


def test_the_last_row_that_outgrows_the_memory_ends_as_at_its_limit() -> None:
    async def run() -> None:
        async with Running(watched_instance(4 << 20)) as engine:
            generation = await engine.submit(request("a", [1, 2, 3], 3000))
            begun = await some(generation, 10)
            await engine.ask(shrink(1 << 20))
            events = [event async for together in generation for event in together]
            generation.close()
            assert events[-1].finish == "length"
            assert len(begun) + len(events) < 3000

    asyncio.run(run())


def test_a_prompt_that_never_fits_is_refused_with_the_account() -> None:
    async def run() -> None:
        async with Running(watched_instance(4 << 20)) as engine:
            with pytest.raises(NoMemory, match=r"weights .* of .*B\. What helps"):
                await engine.submit(request("a", [1, 2, 3] * 1000))
            answer = await collect(await engine.submit(request("b", [1, 2, 3])))
            assert answer == greedy(oracle().model, [1, 2, 3], 6)

    asyncio.run(run())


def test_the_account_agrees_with_mlx_and_says_when_it_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        async with Running(watched_instance(64 << 20)) as engine:
            await collect(await engine.submit(request("a", [1, 2, 3] * 100, 40)))
            report = await engine.ask(lambda instance: checked(instance))
            assert abs(report) < 0.02
            assert "account" not in caplog.text
            leak = await engine.ask(lambda instance: leaked(1 << 22))
            assert await engine.ask(lambda instance: checked(instance)) > 0.02
            assert "the account of memory is off by" in caplog.text
            assert leak is not None

    asyncio.run(run())


def test_an_engine_at_rest_compares_its_account_with_mlx(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        gc.collect()  # what other tests have left is on no account
        account = MemoryAccount(0)
        async with Running(watched_instance(64 << 20, account=account), account) as engine:

            def drift() -> float:
                assert engine.whole.memory is not None
                return engine.whole.memory.drift

            def held() -> int:
                return engine.whole.memory.ledger.blocks if engine.whole.memory else 0

            await collect(await engine.submit(request("a", [1, 2, 3] * 100, 40)))
            await until(lambda: held() > 1 << 20 and abs(drift()) < 0.02)
            leak = await engine.ask(lambda instance: leaked(1 << 22))
            await until(lambda: drift() > 0.02)
            assert "the account of memory is off by" in caplog.text
            assert leak is not None

    asyncio.run(run())


def test_tokens_that_a_tail_and_a_block_share_are_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step cuts the block behind a prompt's tail. The rows are just full: places that no block
    holds would hide it."""
    beyond = list[int]()
    relieve = ModelInstance.relieve

    def relieve_and_compare(instance: ModelInstance, now: float) -> list[TokenEvent]:
        device.wait()
        assert instance.watch is not None
        beyond.append(device.active_memory() - instance.watch.share.account.held().held)
        return relieve(instance, now)

    async def run() -> None:
        async with Running(watched_instance(64 << 20)) as engine:
            for number in range(8):
                prompt = [number, *[2, 3] * 124, *range(number)]
                await collect(await engine.submit(request(str(number), prompt, 20)))

    monkeypatch.setattr(ModelInstance, "relieve", relieve_and_compare)
    monkeypatch.setattr(ModelInstance, "is_steady", lambda instance: False)
    asyncio.run(run())
    assert len(beyond) > 8 * 20
    assert min(beyond) > -4096, "less than one token"


def leaked(nbytes: int) -> mx.array:
    array = mx.zeros(nbytes, dtype=mx.uint8)
    mx.eval(array)
    return array


def checked(instance: ModelInstance) -> float:
    assert instance.watch is not None
    device.wait()
    audit = Audit(instance.watch.share.account)
    audit.check(0.0)
    return audit.drift
