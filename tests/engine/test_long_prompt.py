"""A long prompt beside streams and newcomers, on a real engine: nobody waits for more than a chunk
or two of it.

Times are noted on the mlx thread and judged by those of the chunks in the same run, so the machine
may be as slow or as busy as it likes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from omlx_server.clock import now
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.launched import ChunksLaunched, Launched
from omlx_server.compute.payload import BlockCodec, Payload
from omlx_server.compute.runner import ModelRunner
from omlx_server.core.blocks.block import PayloadId
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import TokenEvent
from omlx_server.core.scheduler.limits import SMALLEST_CHUNK, SchedulerLimits
from omlx_server.core.step import Chunk
from omlx_server.engine.model_instance import ModelInstance
from tests.engine.alone import Alone
from tests.engine.running import Running, collect, request
from tests.tiny_models import VOCAB, load_tiny

TOKENS = 30_000
STREAMS = 4
NEWCOMER_SECONDS = 0.5
SHARE = 0.2
CLOCK = 1e-6
# Its attention is what takes the time, and one head of it is enough for a test.
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32_768,
}


@dataclass(frozen=True)
class Span:
    """A piece of time on the mlx thread."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def overlaps(self, other: "Span") -> bool:
        return self.begin < other.end and other.begin < self.end


@dataclass
class Log:
    """When the chunks of a step ran and which they were, how long the rest of each turn took, and
    when tokens were sent."""

    chunks: list[Span] = field(default_factory=list)
    ran: list[list[Chunk]] = field(default_factory=list)
    decodes: list[Span] = field(default_factory=list)
    tokens: dict[str, list[float]] = field(default_factory=dict)

    def clear(self) -> None:
        for noted in (self.chunks, self.ran, self.decodes, self.tokens):
            noted.clear()

    def of_long_prompt(self) -> Span:
        """From the first of its chunks to the last."""
        own = [s for s, ran in zip(self.chunks, self.ran, strict=True) if _has_long(ran)]
        return Span(own[0].begin, own[-1].begin)

    def gaps(self, name: str) -> list[Span]:
        """Between the tokens of a stream while the long prompt was read."""
        during = self.of_long_prompt()
        times = [t for t in self.tokens[name] if during.begin <= t <= during.end]
        return list(map(Span, times, times[1:]))

    def reading(self, span: Span) -> float:
        """Seconds of the chunks that began within it."""
        return sum(c.seconds for c in self.chunks if span.begin <= c.begin < span.end)


def _has_long(ran: list[Chunk]) -> bool:
    return any(chunk.prefill.request == "long" for chunk in ran)


def longest(spans: list[Span], during: Span, count: int) -> float:
    """Seconds of the longest of them that overlap another."""
    return sum(sorted((s.seconds for s in spans if s.overlaps(during)), reverse=True)[:count])


def overlapping(spans: list[Span], during: Span) -> int:
    return sum(span.overlaps(during) for span in spans)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    noted = Log()
    done, read = ModelInstance.note_chunks_done, ModelInstance.take_tokens
    last = now()

    def noted_chunks(instance: ModelInstance, launched: ChunksLaunched, seconds: float) -> None:
        nonlocal last
        done(instance, launched, seconds)
        begin, last = last, now()
        noted.chunks.append(Span(begin, last))
        noted.ran.append([chunk for group in launched.groups for chunk in group])

    def noted_read(instance: ModelInstance, launched: Launched) -> list[TokenEvent]:
        nonlocal last
        events = read(instance, launched)
        begin, last = last, now()
        noted.decodes.append(Span(begin, last))
        for event in events:
            noted.tokens.setdefault(event.request_id, []).append(last)
        return events

    monkeypatch.setattr(ModelInstance, "note_chunks_done", noted_chunks)
    monkeypatch.setattr(ModelInstance, "take_tokens", noted_read)
    return noted


def make_limits(share: float) -> SchedulerLimits:
    return SchedulerLimits(
        prefill_chunk_tokens=device_policy.current().chunk,
        halve_chunks_at=device_policy.current().halved,
        decode_share=share,
    )


def instance(share: float, heads: int = 1) -> Callable[[], ModelInstance]:
    def load() -> ModelInstance:
        loaded = load_tiny("llama", **SMALL, num_attention_heads=heads)
        hot: dict[PayloadId, Payload] = {}
        codec = BlockCodec.of(loaded.model, 256)
        assert codec is not None
        budget = HotBudget(nbytes=1 << 30, checkpoint_bytes=1 << 30)
        cache = PrefixCache(codec.layout, loaded.fingerprint, budget)
        return ModelInstance(
            ModelRunner(loaded, codec, hot.__getitem__), make_limits(share), lambda: cache, hot
        )

    return load


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(7 * i * i + 3 * i + seed) % VOCAB for i in range(length)]


async def read_beside_streams(
    engine: Alone, tokens: int, meanwhile: Callable[[], Awaitable[None]]
) -> None:
    """Reads a prompt while answers without an end go on, and does something now and then."""
    names = [f"stream{number}" for number in range(STREAMS)]
    streams = [
        await engine.submit(request(name, prompt(9, ord(name[-1])), 10**6)) for name in names
    ]
    for generation in streams:
        await anext(aiter(generation))
    long = asyncio.create_task(collect(await engine.submit(request("long", prompt(tokens), 1))))
    while not long.done():
        await asyncio.wait([long], timeout=NEWCOMER_SECONDS)
        await meanwhile()
    assert len(await long) == 1
    for generation in streams:
        generation.close()


def read_long_prompt(share: float) -> dict[str, float]:
    """Newcomers come one, two or three at a time. When each was sent."""
    sent: dict[str, float] = {}
    answers: list[asyncio.Task[list[int]]] = []

    async def run() -> None:
        async def come() -> None:
            for _ in range(1 + len(sent) % 3):
                name = f"new{len(sent)}"
                new = request(name, prompt(5 + 17 * len(sent) % 150, len(sent)), 2)
                sent[name] = now()
                generation = await engine.submit(new)
                answers.append(asyncio.create_task(collect(generation)))

        async with Running(instance(share)) as engine:
            await read_beside_streams(engine, TOKENS, come)
            assert all(len(answer) == 2 for answer in await asyncio.gather(*answers))

    asyncio.run(run())
    return sent


def test_streams_and_newcomers_wait_for_a_chunk_or_two_of_a_long_prompt(log: Log) -> None:
    sent = read_long_prompt(SHARE)
    for number in range(STREAMS):
        gaps = log.gaps(f"stream{number}")
        assert len(gaps) > TOKENS / 256
        for gap in gaps:
            assert overlapping(log.chunks, gap) <= 2
            allowed = longest(log.chunks, gap, 2) + longest(log.decodes, gap, 2)
            assert gap.seconds <= allowed + CLOCK
    assert len(sent) >= 10
    for name, begin in sent.items():
        wait = Span(begin, log.tokens[name][0])
        assert overlapping(log.chunks, wait) <= 5
        # Streams may be owed something for the chunk before it came.
        known = Span(max(c.begin for c in log.chunks if c.begin <= begin), wait.end)
        allowed = 5 * longest(log.chunks, known, 1) / (1 - SHARE) + longest(log.decodes, wait, 2)
        assert wait.seconds <= allowed + CLOCK, f"{name} waited for {wait.seconds} s"
    check_chunks(log)


def check_chunks(log: Log) -> None:
    """What is meant by a chunk is bounded itself: a step has no more than one of the long prompt,
    with what fits beside it."""
    limits = make_limits(0)
    grid = limits.prefill_chunk_tokens
    for ran in log.ran:
        assert sum(len(chunk.tokens) for chunk in ran) <= grid + grid // 8
        assert sum(not chunk.joins for chunk in ran) <= 1
        for chunk in ran:
            deep = limits.halve_chunks_at is not None and chunk.start > 4 * limits.halve_chunks_at
            size = SMALLEST_CHUNK if deep else grid
            assert len(chunk.tokens) <= size + size // 8


def time_of_streams(log: Log, share: float) -> tuple[float, float]:
    """What they had of the time in the second half of a prompt, and their tokens for each of its
    chunks."""
    log.clear()

    async def nothing() -> None:
        return

    async def run() -> None:
        async with Running(instance(share, heads=4)) as engine:
            await read_beside_streams(engine, 8000, nothing)

    asyncio.run(run())
    during = log.of_long_prompt()
    deep = Span((during.begin + during.end) / 2, during.end)  # where chunks take long
    tokens = sum(deep.begin < t <= deep.end for t in log.tokens["stream0"])
    return 1 - log.reading(deep) / deep.seconds, tokens / overlapping(log.chunks, deep)


def test_streams_keep_their_share_of_the_time(log: Log) -> None:
    """Once in three times is enough: the machine may pause within the last chunks."""
    found = []
    for _ in range(3):
        without, alternating = time_of_streams(log, 0.0)
        share, several = time_of_streams(log, 0.3)
        found.append((without, share, alternating, several))
        if without < share > 0.3 * 0.9 and alternating < 1.2 and several > 1.5 * alternating:
            return
    raise AssertionError(found)
