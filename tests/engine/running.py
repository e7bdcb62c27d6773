"""An engine with one tiny model, and requests to it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

from omlx_server.clock import now
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request, RequestId, SamplingParams, TokenEvent
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.scheduler.scheduler import Scheduler
from omlx_server.core.step import Step
from omlx_server.engine.client.generation import Generation
from omlx_server.engine.memory.account import MemoryAccount, MemoryWatch
from omlx_server.engine.model_instance import ModelInstance
from tests.engine.alone import Alone
from tests.tiny_models import load_tiny

LIMITS = SchedulerLimits(
    max_batch_size=4, max_queue=8, prefill_chunk_tokens=16, max_batched_tokens=64
)
BUDGET = HotBudget(nbytes=1 << 30, checkpoint_bytes=1 << 30)


def request(name: str, prompt: Sequence[int], max_tokens: int = 6, **changes: float) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0)
    return Request(RequestId(name), tuple(prompt), sampling, arrived=now(), **changes)  # type: ignore[arg-type]


def make_instance(
    loaded: LoadedModel, limits: SchedulerLimits = LIMITS, watch: MemoryWatch | None = None
) -> ModelInstance:
    hot: dict[PayloadId, Payload] = {}
    codec = BlockCodec.of(loaded.model, 8)
    assert codec is not None
    return ModelInstance(
        ModelRunner(loaded, codec, hot.__getitem__),
        limits,
        lambda: PrefixCache(codec.layout, loaded.fingerprint, BUDGET),
        hot,
        watch=watch,
    )


def plain_instance(limits: SchedulerLimits = LIMITS) -> ModelInstance:
    return make_instance(load_tiny("llama"), limits)


async def collect(generation: Generation) -> list[int]:
    async with generation:
        return [e.token async for events in generation for e in events if e.token is not None]


class Running:
    """An engine that is started and stopped around a test."""

    def __init__(
        self,
        load: Callable[[], ModelInstance] = plain_instance,
        account: MemoryAccount | None = None,
    ) -> None:
        self.failures: list[str] = []
        self.engine = Alone(load, self.failures.append, account)

    async def __aenter__(self) -> Alone:
        await self.engine.start()
        await self.engine.ready()
        return self.engine

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


def idle(engine: Alone) -> bool:
    load = engine.status.load
    return not (load.running or load.prefilling or load.waiting)


class CrashingScheduler(Scheduler):
    """Crashes in `schedule` as often as `crashes` says."""

    crashes = 0

    def schedule(self, now: float) -> Step | None:
        if self.has_work and CrashingScheduler.crashes:
            CrashingScheduler.crashes -= 1
            raise ZeroDivisionError("planted")
        return super().schedule(now)


async def singly(generation: Generation) -> AsyncIterator[TokenEvent]:
    """The events of an answer one by one."""
    async for events in generation:
        for event in events:
            yield event


async def some(generation: Generation, count: int) -> list[int]:
    """The first tokens of an answer: at least `count`, as some come together."""
    tokens = list[int]()
    async for events in generation:
        tokens += [event.token for event in events if event.token is not None]
        if len(tokens) >= count:
            break
    return tokens
