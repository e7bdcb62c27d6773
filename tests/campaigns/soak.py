"""A server under a limit that fits half of its load: random arrivals, lengths and cancels.

The engine is the real one, in this process, so that each of its turns can be judged: what MLX took
at most since the turn before, and whether the account of memory agrees with MLX.
"""

import asyncio
import gc
import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from omlx_server.clock import now
from omlx_server.compute.hardware import device
from omlx_server.compute.launched import ChunksLaunched, Launched
from omlx_server.compute.model.loader import LoadedModel, load
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.planning.plan_file import planner_for
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import (
    Admitted,
    FinishReason,
    Request,
    RequestId,
    SamplingParams,
    TokenEvent,
)
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.engine.memory.account import Audit, MemoryAccount
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import OmlxError
from omlx_server.models import catalogue
from omlx_server.models.bundled import starter as starter_model
from omlx_server.settings import Settings
from omlx_server.store.cold import ColdTier
from omlx_server.store.files import Files
from omlx_server.wiring.memory import make_watch
from tests.arrays import plain
from tests.compute.cold_cache import SECRET, Steady
from tests.engine.alone import Alone
from tests.tiny_models import load_tiny

BLOCK = 64
_CANCELLED = 0.15
# Of the largest logit: so near to it another one may win where chunks differ.
_TIE = 2e-3


@dataclass(frozen=True, slots=True)
class Load:
    """`room` bytes above the weights; each of `clients` asks one question after the other, of up
    to `longest` tokens, half of which `beginnings` share. With files in `cold` a client's questions
    are the turns of a conversation, and the server is restarted after half of the time."""

    room: int
    seconds: float
    clients: int = 12
    longest: int = 1200
    answer: int = 120
    beginnings: int = 6
    chunk: int = 128
    cold: Path | None = None


TINY = Load(room=30_000_000, seconds=600.0)
RESTARTED = Load(room=30_000_000, seconds=60.0, clients=8, longest=1600, answer=60)
STARTER = Load(room=250_000_000, seconds=300.0, clients=6, longest=800, answer=60, beginnings=3)


def tiny() -> LoadedModel:
    """One whose caches are large beside its weights."""
    return load_tiny("llama", num_hidden_layers=4, num_key_value_heads=4, head_dim=32)


def windowed() -> LoadedModel:
    """One with full and sliding layers, which share the buffer of a block."""
    return load_tiny("gpt_oss", num_key_value_heads=4, head_dim=32, sliding_window=256)


def hybrid() -> LoadedModel:
    """One with a state beside its caches."""
    return load_tiny("qwen3_next", num_key_value_heads=4, head_dim=64)


def starter() -> LoadedModel:
    """The starter model in float32."""
    directory: Path = Settings().models.dirs[0]
    return load(starter_model.ensure(catalogue.STARTER, directory, variant="f32"))


@dataclass(slots=True)
class Outcome:
    """What was seen. `peak` is the most that MLX held, over the limit; `drift` the most by which
    the account was wrong; `left` what is held afterwards above weights and hot tier. `common`
    counts the tokens of prompts that were in the turn before, `cached` those that the cache had."""

    answers: int = 0
    common: int = 0
    cached: int = 0
    cancelled: int = 0
    steps: int = 0
    tokens: int = 0
    peak: float = 0.0
    drift: float = 0.0
    emptied: int = 0
    left: int = 0
    reliefs: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        held = self.peak <= 1.02 and abs(self.drift) <= 0.02 and not self.emptied
        return held and not (self.wrong or self.lost or self.left) and self.answers > 0

    def __str__(self) -> str:
        reliefs = ", ".join(f"{name} {count}" for name, count in sorted(self.reliefs.items()))
        return (
            f"{self.answers} answers, {self.cancelled} cancelled, {self.tokens} tokens in "
            f"{self.steps} steps; peak {self.peak:.3f} of the limit, drift {self.drift:+.4f}, "
            f"hot tier emptied {self.emptied} times, {self.left} bytes left; {reliefs}; "
            f"{self.cached} of {self.common} tokens cached; "
            f"{len(self.wrong)} wrong, {len(self.lost)} lost"
        )


class JudgedInstance(ModelInstance):
    """Judges each turn of the engine, when the device is at rest."""

    outcome: Outcome
    has_begun = False

    def relieve(self, now: float) -> list[TokenEvent]:
        device.wait()
        outcome, watch = self.outcome, self.watch
        assert watch is not None
        outcome.steps += 1
        if not self.has_begun:  # the load and its probes were before
            self.has_begun = True
            device.begin_peak()
        outcome.peak = max(outcome.peak, device.peak_memory() / watch.guard.limit)
        device.begin_peak()
        audit = Audit(watch.share.account)
        audit.check(now)
        outcome.drift = max(outcome.drift, audit.drift, key=abs)
        before = self.cache.index.nbytes
        events = super().relieve(now)
        outcome.emptied += before > 0 and self.cache.index.nbytes == 0
        return events

    def launch_chunks(self, launched: Launched) -> tuple[ChunksLaunched, list[TokenEvent]]:
        """The watch begins a peak of its own for the chunks."""
        assert self.watch is not None
        self.outcome.peak = max(self.outcome.peak, device.peak_memory() / self.watch.guard.limit)
        return super().launch_chunks(launched)


def campaign(model: Callable[[], LoadedModel], work: Load, *, seed: int = 1) -> Outcome:
    """Run the load; every answer is compared with a cold forward afterwards."""
    return asyncio.run(_campaign(model, work, seed))


async def _campaign(model: Callable[[], LoadedModel], work: Load, seed: int) -> Outcome:
    outcome = Outcome()
    if work.cold is None:
        await serve(model, work, outcome, Questions(work, outcome, seed))
        return outcome
    conversations = _Conversations(replace(work, seconds=work.seconds / 2), outcome, seed)
    for _ in range(2):
        await serve(model, work, outcome, conversations)
    return outcome


async def serve(
    model: Callable[[], LoadedModel], work: Load, outcome: Outcome, soak: "_Clients"
) -> None:
    """Start a server, run the clients, judge what is left when all of them have gone."""
    failures: list[str] = []
    cold = None
    if work.cold is not None:
        cold = ColdTier(Files(work.cold), SECRET, budget=1 << 40, queue_bytes=work.room // 10)
    account = MemoryAccount(0, work.room // 10 if cold else 0)
    engine = Alone(
        lambda: _instance(model(), work, outcome, account, cold), failures.append, account
    )
    if cold is not None:
        cold.wake = engine.whole.wake
        cold.start()
    await engine.start()
    await engine.ready()
    try:
        await soak.run(engine)
        while await engine.ask(lambda instance: instance.scheduler.has_work):
            await asyncio.sleep(0.01)
        await engine.ask(soak.judge)
    finally:
        await engine.stop()
        if cold is not None:
            cold.close(10)
    outcome.lost += failures


def _instance(
    loaded: LoadedModel, work: Load, outcome: Outcome, account: MemoryAccount, cold: ColdTier | None
) -> ModelInstance:
    gc.collect()
    planner = planner_for(loaded)
    weights = device.active_memory()
    account.limit = weights + work.room
    codec = BlockCodec.of(loaded.model, BLOCK)
    assert codec is not None
    hot: dict[PayloadId, Payload] = {}
    budget = HotBudget(work.room, work.room // 4)
    share = account.share(weights)
    share.set_weights_and_budget(weights, lambda weights: budget)
    instance = JudgedInstance(
        ModelRunner(loaded, codec, hot.__getitem__),
        SchedulerLimits(prefill_chunk_tokens=work.chunk, max_batched_tokens=4 * work.chunk),
        lambda: PrefixCache(
            codec.layout, loaded.fingerprint, budget, cold.index if cold is not None else None
        ),
        hot,
        cold,
        write_through=cold is not None,
        watch=make_watch(share, planner),
    )
    instance.outcome = outcome
    instance.cache.read_ahead.rates = Steady()
    return instance


class _Clients(ABC):
    """The clients and what they got."""

    def __init__(self, work: Load, outcome: Outcome, seed: int) -> None:
        self._load = work
        self._outcome = outcome
        self._rng = random.Random(seed)
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._vocab = 0
        self._number = 0
        self._is_over = False

    def stop(self) -> None:
        """Ask nothing more."""
        self._is_over = True

    async def run(self, engine: Alone) -> None:
        self._engine = engine
        loaded = await engine.ask(lambda instance: instance.runner.loaded)
        self._vocab = loaded.dims.vocab
        end = time.monotonic() + self._load.seconds
        clients = range(self._load.clients)
        await asyncio.gather(*(self._client(number, end) for number in clients))

    @abstractmethod
    async def _client(self, number: int, end: float) -> None: ...

    async def _ask(self, prompt: tuple[int, ...], common: int = 0) -> tuple[int, ...] | None:
        """The answer; None where the client did not wait for all of it. The first `common` tokens
        were in the turn before."""
        rng, outcome = self._rng, self._outcome
        self._number += 1
        name = f"r{self._number}"
        sampling = SamplingParams(max_tokens=rng.randrange(1, self._load.answer), temperature=0)
        choices = rng.choice([1, 1, 1, 2])
        request = Request(RequestId(name), prompt, sampling, n=choices, arrived=now())
        patience = rng.randrange(1, 60) if rng.random() < _CANCELLED else None
        answers: dict[int, list[int]] = {index: [] for index in range(choices)}
        finishes: dict[int, FinishReason] = {}
        try:
            async with await self._engine.submit(request) as generation:
                async for events in generation:
                    for event in events:
                        if event.token is not None:
                            answers[event.index].append(event.token)
                        if event.finish:
                            finishes[event.index] = event.finish
                    if patience is not None and sum(map(len, answers.values())) >= patience:
                        outcome.cancelled += 1
                        break
            self._count(generation.admitted, common)
        except OmlxError as error:
            outcome.lost.append(f"{name}: {error}")
            return None
        for index, answer in answers.items():
            self._note(name, prompt, tuple(answer))
            whole = len(answer) == sampling.max_tokens
            if patience is None and not whole:
                outcome.lost.append(f"{name}: ended by {finishes.get(index)} at {len(answer)}")
        outcome.answers += patience is None
        return tuple(answers[0]) if patience is None else None

    def _count(self, admitted: Admitted | None, common: int) -> None:
        if admitted is not None:
            self._outcome.common += common
            self._outcome.cached += min(common, admitted.cached)

    def _note(self, name: str, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        self._outcome.tokens += len(answer)
        known = self._answers.get(prompt, ())
        shorter, longer = sorted((known, answer), key=len)
        if longer[: len(shorter)] != shorter:
            self._outcome.wrong.append(f"{name}: two answers to one prompt")
        self._answers[prompt] = longer

    def judge(self, instance: ModelInstance) -> None:
        """On the mlx thread, when all clients have gone: is all right, has all come down?"""
        outcome = self._outcome
        assert instance.watch is not None
        device.wait()
        outcome.peak = max(outcome.peak, device.peak_memory() / instance.watch.guard.limit)
        audit = Audit(instance.watch.share.account)
        outcome.reliefs.update(dict(audit.report([instance.watch.guard]).reliefs))
        instance.runner.runs.tidy(wholly=True)
        outcome.left = instance.ledger().live
        audit.check(now())
        outcome.drift = max(outcome.drift, audit.drift, key=abs)
        model = instance.runner.loaded.model
        for prompt, answer in self._answers.items():
            if not _is_right(model, prompt, answer):
                outcome.wrong.append(f"a prompt of {len(prompt)} tokens")
        device.begin_peak()

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(1, self._vocab) for _ in range(count))


class Questions(_Clients):
    """Each on its own, after one of a few beginnings."""

    async def run(self, engine: Alone) -> None:
        self._beginnings = list[tuple[int, ...]]()
        await super().run(engine)

    async def _client(self, number: int, end: float) -> None:
        rng, half = self._rng, self._load.longest // 2
        while len(self._beginnings) < self._load.beginnings:
            self._beginnings.append(self._tokens(half))
        while time.monotonic() < end and not self._is_over:
            await asyncio.sleep(rng.expovariate(20))
            shared = rng.choice(self._beginnings)[: rng.randrange(1, half)]
            await self._ask(shared + self._tokens(rng.randrange(1, half)))


class _Conversations(_Clients):
    """Each prompt is the last one of its client, the answer to it, and some more; a conversation
    that is too long is begun anew, and one that has begun goes on after a restart."""

    def __init__(self, work: Load, outcome: Outcome, seed: int) -> None:
        super().__init__(work, outcome, seed)
        self._told = {number: tuple[int, ...]() for number in range(work.clients)}

    async def _client(self, number: int, end: float) -> None:
        rng, longest = self._rng, self._load.longest
        while time.monotonic() < end:
            await asyncio.sleep(rng.expovariate(20))
            told = self._told[number]
            if len(told) > longest * 3 // 4:
                told = ()
            prompt = told + self._tokens(rng.randrange(1, longest // 4))
            answer = await self._ask(prompt, len(told))
            self._told[number] = prompt + answer if answer is not None else told


def _is_right(model: nn.Module, prompt: tuple[int, ...], answer: tuple[int, ...]) -> bool:
    """Whether one cold forward over all of it would choose each token of the answer."""
    if not answer:
        return True
    tokens = mx.array([[*prompt, *answer[:-1]]])
    logits = model(tokens, cache=make_prompt_cache(model))[0, len(prompt) - 1 :]
    logits = logits.astype(mx.float32)
    chosen = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=1)[:, 0]
    best = mx.max(logits, axis=1)
    return bool(plain(mx.all(best - chosen <= _TIE * mx.abs(best))))
