"""What the parts of deep chunks take, against what was predicted for them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.forward_parts import ForwardParts
from omlx_server.compute.hardware import device
from omlx_server.compute.planning.chunk_times import timing_depths
from omlx_server.compute.planning.probe import filled_caches, one_token_caches
from omlx_server.core.chunk_sizes import ChunkPace
from omlx_server.core.dispatch_limit import DispatchLimit
from omlx_server.core.request import RequestId
from omlx_server.core.scheduler.limits import SchedulerLimits
from omlx_server.core.step import Chunk, SequenceId
from omlx_server.core.work import finish
from tests.core.dispatch_parts import longest_seconds
from tests.tiny_models import load_tiny

DEPTHS = (2000, 4000, 8000, 16_000, 30_000)
SIZE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
CHUNK = 256


@dataclass(frozen=True)
class Deep:
    """A chunk's parts: the longest one's seconds, and those predicted for it."""

    depth: int
    tokens: int
    count: int
    longest: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.longest / self.predicted

    def __str__(self) -> str:
        return (
            f"{self.depth} tokens deep: {self.tokens} tokens in {self.count} parts, the longest "
            f"took {1000 * self.longest:.1f} ms, predicted {1000 * self.predicted:.1f} ms"
        )


def campaign(
    depths: Sequence[int] = DEPTHS, size: Mapping[str, int] = SIZE, runs: int = 3
) -> list[Deep]:
    loaded = load_tiny("llama", **size)
    pace = finish(timing_depths(loaded, [CHUNK], {}, 1 << 30))
    assert isinstance(pace, ChunkPace)
    # A third of what a layer of a whole chunk takes in the middle.
    seconds = pace.fixed_seconds(CHUNK) + pace.attention_seconds(CHUNK, 8000)
    limit = DispatchLimit(seconds / 3, pace)
    limits = SchedulerLimits(prefill_chunk_tokens=CHUNK, dispatch=limit)
    outcomes = []
    for depth in depths:
        tokens = limits.grid_at(depth)
        times = [_part_seconds(loaded.model, limit, depth, tokens) for _ in range(runs)]
        longest = min(map(max, times))  # the machine may have been busy in the others
        predicted = longest_seconds(limit, [(tokens, depth)])
        outcomes.append(Deep(depth, tokens, len(times[0]), longest, predicted))
    return outcomes


def _part_seconds(model: Any, limit: DispatchLimit, depth: int, tokens: int) -> list[float]:
    caches = filled_caches(model, depth, CHUNK, one_token_caches(model))
    parts, seconds = ForwardParts(model), list[float]()
    parts.limit = limit
    chunk = Chunk(SequenceId(RequestId("a"), 0), depth, (1,) * tokens, ())
    with pytest.MonkeyPatch.context() as patch:
        begun = time.perf_counter()

        def launch(*arrays: Any) -> None:
            nonlocal begun
            mx.eval(*arrays)
            seconds.append(time.perf_counter() - begun)
            begun = time.perf_counter()

        patch.setattr(device, "launch", launch)
        with parts.of_chunks([chunk]):
            model(mx.array([chunk.tokens]), cache=caches)
        if not seconds:  # it was submitted whole
            launch(*(cache.state for cache in caches))
    return seconds
