"""What is submitted together stays below the limit, for random models, devices and depths."""

import random
from dataclasses import replace

import pytest

from omlx_server.core.chunk_sizes import ALONE_SECONDS, ChunkPace
from omlx_server.core.dispatch_limit import DispatchLimit, DispatchParts
from omlx_server.core.scheduler.limits import SMALLEST_CHUNK, SchedulerLimits
from tests.core.dispatch_parts import longest_seconds

DEEPEST = 1 << 20
ROUNDING = 1.0001


def pace_of(rng: random.Random) -> ChunkPace:
    """A model (dense, or with experts, whose short chunks read all weights) on a device."""
    layers = rng.randint(1, 96)
    token, weights = rng.uniform(1e-5, 2e-3), rng.choice([0.0, rng.uniform(0.001, 0.1)])
    sizes = [1, 64, *(size for size in (256, 512, 1024, 2048) if rng.random() < 0.7)]
    slope = rng.choice([0.0, rng.uniform(1e-10, 2e-7)])
    bend = rng.uniform(1.0, 4.0)  # where keys no longer fit in the processor's caches
    return ChunkPace(
        layers,
        growing=rng.randint(0, layers),
        by_size=tuple((size, weights + size * token) for size in sizes),
        by_depth=((128.0, 0.0), (4096.0, 4096 * slope), (16384.0, 16384 * slope * bend)),
    )


def limit_of(rng: random.Random) -> DispatchLimit:
    """A limit that the layers' other work allows for a smallest chunk, and 1,024 keys too."""
    pace = pace_of(rng)
    fewest_keys = pace.attention_seconds(SMALLEST_CHUNK, DEEPEST) * 1024 / DEEPEST
    least = pace.fixed_seconds(SMALLEST_CHUNK) * 4 / 3 + fewest_keys
    return DispatchLimit(least * rng.uniform(1.0, 20.0), pace)


@pytest.mark.parametrize("seed", range(300))
def test_no_part_of_a_chunk_is_longer_than_the_limit_and_all_chunks_advance(seed: int) -> None:
    rng = random.Random(seed)
    limit = limit_of(rng)
    size = rng.choice([256, 512])
    limits = SchedulerLimits(
        prefill_chunk_tokens=size,
        alone_chunk_tokens=size * rng.choice([1, 2, 4]),
        max_batched_tokens=2048,
        halve_chunks_at=rng.choice([None, 1024, 65_536]),
        dispatch=limit,
    )
    positions = sorted(rng.randrange(DEEPEST) for _ in range(50))
    for alone in (False, True):
        for position in (0, *positions, DEEPEST - 1):
            chunk = limits.grid_at(position, alone=alone)
            assert SMALLEST_CHUNK <= chunk <= limits.chunks.alone
            assert longest_seconds(limit, [(chunk, position)]) <= limit.seconds * ROUNDING
            is_smallest = chunk == SMALLEST_CHUNK
            assert is_smallest or limit.pace.chunk_seconds(chunk, position) <= ALONE_SECONDS


@pytest.mark.parametrize("seed", range(100))
def test_no_group_of_layers_of_a_decode_is_longer_than_the_limit(seed: int) -> None:
    rng = random.Random(seed)
    limit = limit_of(rng)
    rows = [(1, rng.randrange(DEEPEST)) for _ in range(rng.randint(1, SMALLEST_CHUNK))]
    assert longest_seconds(limit, rows) <= limit.seconds * ROUNDING


def test_chunks_shrink_with_depth_and_depend_on_the_position_only() -> None:
    pace = ChunkPace(10, 10, ((1, 0.01), (512, 0.1)), ((0.0, 0.0), (16384.0, 0.0002)))
    limits = SchedulerLimits(prefill_chunk_tokens=512, dispatch=DispatchLimit(0.1, pace))
    grid = [limits.grid_at(position) for position in (0, 16_384, 300_000, 1 << 20)]
    assert grid == [512, 512, 256, 64]


def test_the_attention_of_a_layer_is_divided_where_the_smallest_chunk_is_too_long() -> None:
    pace = ChunkPace(10, 10, ((1, 0.01), (512, 0.1)), ((0.0, 0.0), (16384.0, 0.0002)))
    limit = DispatchLimit(0.01, pace)
    assert limit.parts([(64, 0)]) == DispatchParts(4)
    deep = limit.parts([(64, 1 << 20)])
    assert deep.layers == 1
    assert deep.keys is not None
    assert 1024 <= deep.keys < 1 << 20


def test_a_correction_groups_layers_and_changes_no_keys() -> None:
    pace = ChunkPace(10, 10, ((1, 0.01), (512, 0.1)), ((0.0, 0.0), (16384.0, 0.0002)))
    limit = DispatchLimit(0.05, pace)
    assert limit.parts([(512, 0)]).layers == 4
    assert limit.parts([(512, 0)], correction=2.0).layers == 2
    deep = [(64, 1 << 20)]
    divided = replace(limit, seconds=0.01)
    assert divided.parts(deep, correction=5.0) == divided.parts(deep)


def test_a_layer_without_growing_attention_takes_as_long_at_any_depth() -> None:
    pace = ChunkPace(4, 0, ((1, 0.01), (64, 0.02)), ((0.0, 0.0), (4096.0, 1.0)))
    assert pace.chunk_seconds(64, 0) == pace.chunk_seconds(64, DEEPEST) == 0.02
    assert pace.chunk_seconds(128, 0) == 0.04


def test_halved_limits_end_at_some_milliseconds() -> None:
    limit = DispatchLimit(0.2, ChunkPace(1, 1, ((1, 0.1),), ((0.0, 0.0),)))
    assert limit.halved().seconds == 0.1
    for _ in range(10):
        limit = limit.halved()
    assert limit.seconds == 0.005
