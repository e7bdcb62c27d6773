"""The map of a prefix cache's blocks, by example, and how little of it is made at once."""

from collections.abc import Sequence
from random import Random

import pytest

from omlx_server.core.blocks.block import Size, Worth
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.prefix_cache import block_map
from omlx_server.core.prefix_cache.block_map import BlockMap, MappedBlock, mapped
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.work import finish
from tests.core.places import place
from tests.core.stored import BYTES, COLD_BYTES, cache_with, chill, store

ROOM = 1 << 30
A, B = tuple(range(100, 114)), (*range(100, 108), *range(200, 208))


def map_of(cache: PrefixCache, most: int = 100, now: float = 0.0) -> BlockMap:
    return finish(mapped(cache, now, most))


def spans(found: BlockMap) -> list[tuple[int, int]]:
    return sorted((block.start, block.stop) for block in found.blocks)


def is_a_tree(blocks: Sequence[MappedBlock]) -> bool:
    """Whether all parents come before their children."""
    known = set[bytes]()
    for block in blocks:
        if (block.parent is None) != (block.start == 0) or (
            block.parent is not None and block.parent not in known
        ):
            return False
        known.add(block.key)
    return True


def test_all_blocks_are_told_as_a_tree() -> None:
    found = map_of(cache_with(A, B))
    assert spans(found) == [(0, 4), (4, 8), (8, 12), (8, 12), (12, 14), (12, 16)]
    assert found.left_out == 0 and is_a_tree(found.blocks)
    assert all(block.nbytes == BYTES and not block.is_cold for block in found.blocks)
    assert found.block_tokens == 4 and found.report.blocks == 6


def test_those_that_were_used_last_are_told_with_what_they_follow() -> None:
    cache = cache_with(A, B)
    cache.index.touch(cache.index.match(cache.root(b""), A).path[-1])
    found = map_of(cache, 4)
    assert spans(found) == [(0, 4), (4, 8), (8, 12), (12, 14)]
    assert found.left_out == 2 and is_a_tree(found.blocks)
    assert spans(map_of(cache, 3)) == [(0, 4), (4, 8), (8, 12)]
    assert map_of(cache, 0).left_out == 6


def test_of_many_blocks_as_many_are_told_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_map, "_LOOKED", 16)
    cache = cache_with(*((n, *range(1000 * n, 1000 * n + 19)) for n in range(1, 101)))
    for most in (1, 7, 50, 499, 500, 501):
        found = map_of(cache, most)
        assert len(found.blocks) == min(most, 500)
        assert found.left_out == 500 - len(found.blocks) and is_a_tree(found.blocks)
    newest = {block.start for block in map_of(cache, 5).blocks}
    assert newest == {0, 4, 8, 12, 16}  # one whole sequence


def test_which_was_used_last_does_not_depend_on_when_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_map, "_LOOKED", 16)
    firsts = list(range(100))
    cache = cache_with(*([n] for n in firsts))
    Random(7).shuffle(firsts)
    for n in firsts:
        cache.index.touch(cache.index.match(cache.root(b""), (n,)).path[0])
    keys = [cache.index.match(cache.root(b""), (n,)).path[0].key for n in firsts]
    for most in (3, 10, 40):
        assert {block.key for block in map_of(cache, most).blocks} == set(keys[-most:])


def test_how_a_block_is_held_is_told() -> None:
    cache = cache_with(A, B)
    assert cache.pin(B[:9], b"", 0.0) is not None
    at = place(cache.root(b""), A[:12])
    assert cache.store_checkpoint(at, Size(7, 1), Worth.SHARED) is not None
    cache.index.use(cache.index.match(cache.root(b""), B).blocks[-1])
    by_span = {(block.stop, block.nbytes > BYTES): block for block in map_of(cache).blocks}
    assert by_span[4, False].pinned and by_span[8, False].pinned
    assert by_span[16, False].in_use and not by_span[16, False].pinned
    checkpointed = by_span[12, True]
    assert checkpointed.has_checkpoint and checkpointed.nbytes == BYTES + 7
    assert not by_span[12, False].has_checkpoint


def test_what_only_the_cold_tier_has_is_told_behind() -> None:
    cache = cache_with(A[:8], cold=ColdIndex(ROOM))
    chill(cache, A)
    found = map_of(cache)
    assert [(b.start, b.is_cold) for b in found.blocks] == [
        *((0, False), (4, False), (8, True), (12, True))
    ]
    assert is_a_tree(found.blocks) and found.left_out == 0
    cold = found.blocks[-1]
    assert (cold.nbytes, cold.idle) == (COLD_BYTES, None)
    short = map_of(cache, 3)
    assert spans(short) == [(0, 4), (4, 8), (8, 12)] and short.left_out == 1


def test_another_models_cold_blocks_are_not_told() -> None:
    cold = ColdIndex(ROOM)
    chill(PrefixCache(cache_with().layout, "another", cache_with().budget, cold), A)
    found = map_of(cache_with(B, cold=cold))
    assert found.left_out == 0 and not any(block.is_cold for block in found.blocks)


def test_ages_are_in_seconds() -> None:
    cache = cache_with(A)
    order = cache.index.order
    order.note_time(10.0)
    store(cache, B)
    order.note_time(25.0)
    ages = {block.stop: block.idle for block in map_of(cache, now=30.0).blocks}
    assert ages[14] == 20.0 and ages[16] == 5.0
    cache.index.touch(cache.index.match(cache.root(b""), B).blocks[-1])
    assert {b.stop: b.idle for b in map_of(cache, now=30.0).blocks}[16] == 0.0


def test_little_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in blocks that are looked at between two steps of the models."""
    monkeypatch.setattr(block_map, "_LOOKED", 8)
    monkeypatch.setattr(block_map, "_SHOWN", 8)
    cache = cache_with(*((n, *range(1000 * n, 1000 * n + 19)) for n in range(1, 21)))
    slices = sum(1 for _ in mapped(cache, 0.0, 100))
    assert slices >= 100 // 8 + 100 // 8


def test_blocks_that_leave_meanwhile_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_map, "_SHOWN", 2)
    cache, found = cache_with(A), BlockMap((), 0, cache_with().report(), 4)
    work = mapped(cache, 0.0, 100)
    next(work)
    cache.reset()
    while True:
        try:
            next(work)
        except StopIteration as end:
            found = end.value
            break
    assert found.blocks == ()
