"""Keys and values by reference: what rows and blocks see of tokens in buffers of others."""

import gc
import random
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.kv import dispatch
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.schemes.base import Arrays
from omlx_server.compute.kv.schemes.plain import Plain
from omlx_server.compute.kv.spans import (
    LostTokens,
    Runs,
    Segment,
    Span,
    count_referred,
)
from omlx_server.core.memory.kv import GROWTH
from tests.arrays import plain
from tests.compute.kv.every_scheme import same_bits
from tests.compute.kv.sequences import HEADS, WIDTH, Tokens, behind, fed, in_rows, segment, tokens


def solo(seed: int, start: int, stop: int, *spans: Span) -> PackedKVCache:
    """A cache of these tokens, behind spans."""
    cache = PackedKVCache(Plain())
    cache.put((), (), 0, spans)
    fed(cache, tokens(seed, start, stop))
    return cache


def seen(part: Segment) -> Arrays:
    [span] = part.spans()
    keys, values = span.arrays()
    return *keys, *values


# -- attention ---------------------------------------------------------------------------


def attended(cache: Any, queries: mx.array, new: Tokens, sinks: mx.array | None) -> mx.array:
    mask = cache.make_mask(queries.shape[2])
    keys, values = cache.update_and_fetch(*new)
    answer: mx.array = mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=0.2, mask=mask, sinks=sinks
    )
    mx.eval(answer)
    return answer


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("seed", range(12))
def test_rows_on_spans_attend_as_if_their_tokens_were_their_own(seed: int, count: int) -> None:
    """Rows on a span, on a part of it, on two and on none, of several lengths; with sinks and
    without."""
    dispatch.install()
    rng, runs = random.Random(seed), Runs()
    first = solo(0, 0, 40)
    [span] = segment(runs, first, 0, 32).spans()
    other = solo(1, 32, 60, span)
    [longer] = segment(runs, other, 32, 48).spans()
    [part] = segment(runs, first, 0, 16).spans()
    begun = tokens(0, 0, 32)
    chains = {0: (), 16: (part,), 32: (span,), 48: (span, longer)}
    own = {0: [], 16: [tokens(0, 0, 16)], 32: [begun], 48: [begun, tokens(1, 32, 48)]}
    rows, whole = list[PackedKVCache](), list[PackedKVCache]()
    for number in range(2, 2 + rng.choice([1, 2, 5])):
        start = rng.choice([0, 16, 32, 48])
        stop = start + rng.choice([1, 7, 8, 300])
        rows.append(solo(number, start, stop, *chains[start]))
        alone = fed(PackedKVCache(Plain()), behind(*own[start], tokens(number, start, stop)))
        whole.append(alone)
    batch = rows[0].merge(rows)
    sinks = rng.choice([None, mx.array([0.5, -1.0, 2.0, 0.0])])
    queries = mx.random.normal((len(rows), 2 * HEADS, count, WIDTH), key=mx.random.key(seed))
    new = [tokens(50 + index, 0, count) for index in range(len(rows))]
    got = attended(batch, queries, in_rows(*new), sinks)
    for index, (row, alone) in enumerate(zip(rows, whole, strict=True)):
        its_queries = queries[index : index + 1]
        expected = attended(alone, its_queries, new[index], sinks)
        assert plain(mx.abs(got[index] - expected[0]).max()) < 1e-5
        by_itself = attended(row, its_queries, new[index], sinks)
        assert plain(mx.abs(by_itself - expected).max()) < 1e-5


def test_rows_of_a_span_keep_their_order_beside_rows_without() -> None:
    runs, first = Runs(), solo(0, 0, 40)
    [span] = segment(runs, first, 0, 32).spans()
    rows = [solo(2, 0, 9), solo(3, 32, 40, span), solo(4, 0, 9), solo(5, 32, 35, span)]
    batch = rows[0].merge(rows)
    assert batch.lengths == [9, 40, 9, 35]
    late = solo(6, 32, 33, span)
    batch.extend(late.merge([late]))
    batch.filter([1, 2, 3, 4])
    begun = tokens(0, 0, 32)
    assert same_bits(batch.row(0), behind(begun, tokens(3, 32, 40)))
    assert same_bits(batch.row(1), tokens(4, 0, 9))
    assert same_bits(batch.row(2), behind(begun, tokens(5, 32, 35)))
    assert same_bits(batch.row(3), behind(begun, tokens(6, 32, 33)))


# -- what is written -----------------------------------------------------------------------


def test_a_sequence_that_goes_back_leaves_to_blocks_what_they_have() -> None:
    runs, cache = Runs(), solo(1, 0, 40)
    block = segment(runs, cache, 0, 32)
    cache.trim(8)
    fed(cache, tokens(2, 32, 36))
    assert cache.strip(0) is block.run.strips[0], "what no block has is just written over"
    cache.trim(16)
    fed(cache, tokens(3, 20, 50))
    assert same_bits(seen(block), tokens(1, 0, 32))
    assert same_bits(cache.row(0), behind(tokens(1, 0, 20), tokens(3, 20, 50)))
    assert block.run.is_idle and cache.strip(0) is not block.run.strips[0]


def test_a_row_that_goes_back_leaves_to_blocks_what_they_have() -> None:
    runs, rows = Runs(), [solo(1, 0, 40), solo(2, 0, 38)]
    batch = rows[0].merge(rows)
    first, other = (segment(runs, batch, 0, 32, row) for row in (0, 1))
    batch.prepare(lengths=[1, 1], right_padding=[16, 0])
    batch.finalize()
    fed(batch, in_rows(tokens(3, 24, 30), tokens(2, 38, 44)))
    assert same_bits(seen(first), tokens(1, 0, 32)) and same_bits(seen(other), tokens(2, 0, 32))
    assert same_bits(batch.row(0), behind(tokens(1, 0, 24), tokens(3, 24, 30)))
    assert same_bits(batch.row(1), tokens(2, 0, 44))
    assert first.run.is_idle and not other.run.is_idle


@pytest.mark.parametrize("rows", [1, 2])
def test_a_row_that_goes_back_into_its_span_writes_beside_it(rows: int) -> None:
    runs, first = Runs(), solo(1, 0, 40)
    shared = segment(runs, first, 0, 32)
    [span] = shared.spans()
    members = [solo(2, 32, 40, span) for _ in range(rows)]
    batch = members[0].merge(members)
    block = segment(runs, batch, 32, 40)
    batch.trim(20)
    assert batch.lengths == [20] * rows
    fed(batch, in_rows(*[tokens(3, 20, 44)] * rows))
    assert same_bits(batch.row(0), behind(tokens(1, 0, 20), tokens(3, 20, 44)))
    assert same_bits(seen(shared), tokens(1, 0, 32)) and same_bits(seen(block), tokens(2, 32, 40))
    later = segment(runs, batch, 20, 44)
    assert same_bits(seen(later), tokens(3, 20, 44))
    assert same_bits(first.row(0), tokens(1, 0, 40))


@pytest.mark.parametrize("is_row", [False, True])
def test_who_goes_back_before_its_own_tokens_leaves_their_strip(is_row: bool) -> None:
    """Also where no block refers to what was written there."""
    runs, first = Runs(), solo(1, 0, 40)
    [span] = segment(runs, first, 0, 32).spans()
    own = solo(2, 32, 40, span)
    cache = own.merge([own]) if is_row else own
    run = runs.of((cache.strip(0),))
    cache.trim(20)
    fed(cache, tokens(3, 20, 44))
    assert cache.strip(0) is not run.strips[0]
    assert same_bits(seen(segment(runs, cache, 20, 44)), tokens(3, 20, 44))


def test_blocks_find_their_tokens_wherever_rows_go() -> None:
    """Rows join, change places and leave; the blocks of each are what they were."""
    runs = Runs()
    rows = [solo(number, 0, 40) for number in range(4)]
    blocks = [segment(runs, row, 8, 40) for row in rows]
    batch = rows[0].merge(rows[:3])
    batch.extend(rows[3].merge([rows[3]]))
    del rows
    for kept in ([1, 2, 3], [1, 2], [1]):
        batch.filter(kept)
        fed(batch, in_rows(*[tokens(90, 0, 3)] * len(kept)))
        for number, block in enumerate(blocks):
            assert same_bits(seen(block), tokens(number, 8, 40)), f"{kept}: {number}"
    assert [block.run.is_idle for block in blocks] == [True, True, True, False]
    batch.hand_over()
    assert blocks[3].run.is_idle and same_bits(seen(blocks[3]), tokens(3, 8, 40))


def test_what_rows_begin_with_is_there_once() -> None:
    """A fork reads what is before the boundary, also of spans before it, and has the rest."""
    runs, first = Runs(), solo(1, 0, 40)
    [span] = segment(runs, first, 0, 32).spans()
    cache = solo(2, 32, 63, span)
    [more] = segment(runs, cache, 32, 56).spans()
    forks = [cache.reading_span(more) for _ in range(2)]
    for number, fork in enumerate(forks):
        fed(fork, tokens(7 + number, 63, 70))
    for number, fork in enumerate(forks):
        wanted = behind(tokens(1, 0, 32), tokens(2, 32, 63), tokens(7 + number, 63, 70))
        assert fork.offset == 70 and fork.own_tokens == 14
        assert same_bits(fork.row(0), wanted)
    assert same_bits(cache.row(0), behind(tokens(1, 0, 32), tokens(2, 32, 63)))
    [all_of_it] = segment(runs, cache, 32, 63).spans()
    assert cache.reading_span(all_of_it).own_tokens == 0


# -- runs --------------------------------------------------------------------------------


def test_a_run_at_rest_is_cut_to_what_is_referred_to() -> None:
    runs, cache = Runs(), solo(1, 0, 300)
    blocks = [segment(runs, cache, 64, 128), segment(runs, cache, 128, 200)]
    runs.tidy(wholly=True)
    assert runs.idle_bytes == 0 and cache.nbytes == 512 * blocks[0].run.token_bytes
    del cache
    assert runs.idle_bytes == 512 * blocks[0].run.token_bytes
    for _ in range(2):
        runs.tidy()
        assert runs.idle_bytes == 136 * blocks[0].run.token_bytes
        assert same_bits(seen(blocks[0]), tokens(1, 64, 128))
        assert same_bits(seen(blocks[1]), tokens(1, 128, 200))
    del blocks[0]
    runs.tidy()
    assert same_bits(seen(blocks[0]), tokens(1, 128, 200))
    blocks.clear()
    gc.collect()
    assert runs.idle_bytes == 0


def test_little_that_is_unused_is_given_back_when_memory_is_asked_for() -> None:
    runs, cache = Runs(), solo(1, 0, 250)  # 256 places
    block = segment(runs, cache, 0, 240)
    del cache
    for wholly, places in ((False, 256), (True, 240), (False, 240)):
        runs.tidy(wholly=wholly)
        assert runs.idle_bytes == places * block.run.token_bytes
    assert same_bits(seen(block), tokens(1, 0, 240))


class Held:
    """What a payload does with its segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment: Segment | None = segment
        self.copy: Arrays = ()
        segment.hold(self)

    def detach(self) -> None:
        assert self.segment is not None
        self.copy, self.segment = tuple(map(mx.contiguous, seen(self.segment))), None


def test_short_runs_are_given_up_when_they_rest_unless_a_row_needs_them() -> None:
    runs = Runs(short=64)
    cache = solo(1, 0, 40)
    blocks = [Held(segment(runs, cache, start, start + 16)) for start in (0, 16)]
    token = 2 * HEADS * WIDTH * 4
    assert runs.block_bytes == 32 * token
    runs.tidy()
    assert all(block.segment for block in blocks), "its sequence is at work"
    row = segment(runs, cache, 0, 16)
    del cache
    runs.tidy()
    assert all(block.segment for block in blocks), "a row reads it"
    del row
    runs.tidy()
    assert not any(block.segment for block in blocks)
    assert runs.block_bytes == runs.idle_bytes == 0
    for block, start in zip(blocks, (0, 16), strict=True):
        assert same_bits(block.copy, tokens(1, start, start + 16))


def test_a_run_with_gaps_is_given_up() -> None:
    runs, cache = Runs(short=8), solo(1, 0, 256)
    blocks = [Held(segment(runs, cache, start, start + 16)) for start in (0, 240)]
    del cache
    runs.tidy()
    assert not any(block.segment for block in blocks) and runs.idle_bytes == 0


def test_what_a_failed_step_had_is_lost_and_nothing_else() -> None:
    runs = Runs()
    rested, at_work, row = solo(1, 0, 40), solo(2, 0, 40), solo(3, 0, 40)
    batch = row.merge([row])
    kept = segment(runs, rested, 0, 32)
    lost = [segment(runs, at_work, 0, 32), segment(runs, batch, 0, 32)]
    del rested
    runs.lose()
    assert same_bits(seen(kept), tokens(1, 0, 32)) and not kept.run.is_lost
    for block in lost:
        assert block.run.is_lost
        with pytest.raises(LostTokens):
            seen(block)
    assert segment(runs, batch, 0, 32).run is not lost[1].run, "it may be used anew"


def test_a_cache_that_was_merged_in_vain_has_its_blocks_again() -> None:
    runs, caches = Runs(), [solo(1, 0, 40), solo(2, 0, 40)]
    blocks = [segment(runs, cache, 0, 32) for cache in caches]
    reader = solo(4, 32, 40, *blocks[0].spans())
    batch = caches[0].merge(caches)
    fed(batch, in_rows(*[tokens(9, 40, 48)] * 2))
    batch.lose()
    assert reader.lost_rows() == [0] and reader.merge([reader, caches[1]]).lost_rows() == [0]
    caches[0].rejoin()
    assert same_bits(seen(blocks[0]), tokens(1, 0, 32)) and blocks[1].run.is_lost
    assert reader.lost_rows() == []
    assert caches[0].strip(0) is blocks[0].run.strips[0]


# -- how many ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "idle", "count"),
    [
        ([300], [True], 1),
        ([256], [True], 0),
        ([200, 100], [True, True], 2),
        ([1000, 499], [True, True], 1),
        ([1000, 500], [True, True], 2),
        ([1000, 10], [True, False], 2),
        ([1000, 300, 10, 300], [True, True, True, True], 4),
        ([1000] * 6, [True] * 6, 4),
        ([1000] * 6, [True] * 5 + [False], 6),
    ],
)
def test_a_row_refers_to_few_long_segments(
    lengths: Sequence[int], idle: Sequence[bool], count: int
) -> None:
    assert count_referred(lengths, idle, GROWTH) == count
