"""Which chunk sizes are chosen from measured times, by example and for any times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.core.chunk_sizes import (
    ALONE_SECONDS,
    BESIDE_SECONDS,
    CANDIDATES,
    ChunkSizes,
    candidates,
    choose_sizes,
)


@pytest.mark.parametrize(
    ("block", "most", "expected"),
    [
        (64, 2048, [256, 512, 1024, 2048]),
        (64, 2047, [256, 512, 1024]),
        (64, 1024, [256, 512, 1024]),
        (512, 2048, [512, 1024, 2048]),
        (1024, 65536, [1024, 2048]),
        (64, 256, [256]),
        (64, 64, [64]),
    ],
)
def test_candidates_hold_whole_blocks_and_fit_into_a_step(
    block: int, most: int, expected: list[int]
) -> None:
    assert candidates(block, most) == expected


TABLE: dict[str, tuple[dict[int, float], ChunkSizes]] = {
    "each is a fifth faster": (
        {256: 0.05, 512: 0.08, 1024: 0.13, 2048: 0.21},
        ChunkSizes(2048, 2048),
    ),
    "a reader would see the gap": (
        {256: 0.1, 512: 0.16, 1024: 0.26, 2048: 0.42},
        ChunkSizes(512, 2048),
    ),
    "a newcomer would wait too long": (
        {256: 0.8, 512: 1.3, 1024: 2.1},
        ChunkSizes(256, 512),
    ),
    "no size is faster": ({256: 0.02, 512: 0.04, 1024: 0.08}, ChunkSizes(256, 256)),
    "a few percent are noise": ({256: 0.02, 512: 0.0385}, ChunkSizes(256, 256)),
    "slow steps add up": ({256: 1.0, 512: 1.93, 1024: 1.99}, ChunkSizes(256, 1024)),
    "only the largest is faster": ({256: 0.02, 512: 0.04, 1024: 0.07}, ChunkSizes(1024, 1024)),
    "even the smallest is too slow": ({256: 30.0}, ChunkSizes(256, 256)),
    "nothing was measured": ({}, ChunkSizes(256, 256)),
}


@pytest.mark.parametrize("why", TABLE)
def test_a_larger_chunk_is_taken_where_it_is_faster_and_short_enough(why: str) -> None:
    seconds, expected = TABLE[why]
    chosen = choose_sizes(256, seconds)
    assert chosen == expected
    assert chosen.token_seconds == seconds.get(chosen.alone, 0) / chosen.alone


TIMES = st.lists(st.floats(1e-3, 10), max_size=len(CANDIDATES)).map(
    lambda seconds: dict(zip(CANDIDATES, seconds, strict=False))
)


@given(TIMES)
def test_no_chunk_stalls_others_for_longer_than_it_may(seconds: dict[int, float]) -> None:
    chosen = choose_sizes(256, seconds)
    assert chosen.beside == 256 or seconds[chosen.beside] <= BESIDE_SECONDS
    assert chosen.alone == 256 or seconds[chosen.alone] <= ALONE_SECONDS


@given(TIMES)
def test_chunks_alone_are_made_of_chunks_of_the_grid_and_no_slower(
    seconds: dict[int, float],
) -> None:
    chosen = choose_sizes(256, seconds)
    assert chosen.alone % chosen.beside == 0
    if seconds:
        rates = [size / seconds[size] for size in (256, chosen.beside, chosen.alone)]
        assert rates == sorted(rates)


@given(TIMES, st.sampled_from([2, 4, 8]))
def test_a_faster_machine_never_has_smaller_chunks(seconds: dict[int, float], times: float) -> None:
    slow = choose_sizes(256, {size: took * times for size, took in seconds.items()})
    fast = choose_sizes(256, seconds)
    assert fast.beside >= slow.beside and fast.alone >= slow.alone


def test_the_words_tell_two_sizes_where_there_are_two() -> None:
    assert str(ChunkSizes(256, 256)) == "256 tokens"
    assert str(ChunkSizes(256, 1024)) == "256 tokens beside running answers, 1024 alone"
