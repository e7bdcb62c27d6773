"""Blocks to which the caches of sequences at work refer: these are not evicted, and count once."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from omlx_server.core.blocks.block import PayloadId, Size
from omlx_server.core.blocks.keys import block_key
from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core.places import place
from tests.core.simulator import KV, ROOMY

BLOCK = 4
BYTES = 40
FIRST, OTHER = tuple(range(100, 112)), tuple(range(200, 212))


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(replace(KV, refers=True), "model", ROOMY)


def store(cache: PrefixCache, tokens: Sequence[int]) -> list[PayloadId | None]:
    """All blocks of a sequence, its short tail too."""
    stops = [*range(BLOCK, len(tokens), BLOCK), len(tokens)]
    size = Size(BYTES, 1)
    return [cache.store_block(place(cache.root(b""), tokens[:stop], BLOCK), size) for stop in stops]


def begin(cache: PrefixCache, tokens: Sequence[int]) -> PrefixHandle:
    handle = cache.enter(tuple(tokens), b"", ())
    cache.admit(handle)
    return handle


def used(cache: PrefixCache) -> int:
    cache.index.check_invariants()
    return cache.index.in_use // BYTES


def test_a_prompt_uses_the_full_blocks_that_it_restores(cache: PrefixCache) -> None:
    store(cache, FIRST)
    handle = begin(cache, FIRST[:11])
    assert used(cache) == 2 and handle.blocks.tokens == 8
    twin = begin(cache, FIRST)
    assert used(cache) == 3 and cache.index.idle_bytes == 0
    cache.leave(twin)
    assert used(cache) == 2
    cache.leave(handle)
    assert used(cache) == 0 and not handle.blocks.path


def test_where_caches_hold_copies_no_block_is_in_use() -> None:
    cache = PrefixCache(KV, "model", ROOMY)
    store(cache, FIRST)
    handle = begin(cache, FIRST)
    assert used(cache) == 0 and handle.blocks.tokens == 0
    assert cache.blocks_to_use(handle, 12) == (0, 0)


def test_what_is_in_use_takes_nothing_of_the_budget(cache: PrefixCache) -> None:
    store(cache, FIRST)
    begin(cache, FIRST)
    store(cache, OTHER[:4])
    cache.budget = HotBudget(BYTES, 0)
    assert len(cache.index) == 4
    cache.budget = HotBudget(0, 0)
    assert len(cache.index) == used(cache) == 3


def test_room_is_made_of_what_nobody_uses(cache: PrefixCache) -> None:
    store(cache, FIRST)
    handle = begin(cache, FIRST)
    cache.let_go(handle)
    store(cache, OTHER)
    assert cache.eviction.make_room(1, 0).nbytes == BYTES
    assert cache.eviction.make_room(1, 2 * BYTES).nbytes == 0
    assert cache.eviction.make_room(1000, 0).nbytes == 2 * BYTES
    assert len(cache.index) == used(cache) == 3


def test_who_leaves_puts_its_blocks_under_the_budget(cache: PrefixCache) -> None:
    store(cache, FIRST)
    handle = begin(cache, FIRST)
    cache.budget = HotBudget(BYTES, 0)
    cache.leave(handle)
    assert cache.index.nbytes == BYTES
    assert len(cache.eviction.take_evicted()) == 2


def test_a_sequence_uses_the_full_blocks_that_it_makes(cache: PrefixCache) -> None:
    handle = begin(cache, FIRST[:6])
    for id in store(cache, FIRST[:6]):
        assert id is not None
        cache.uses.extend(handle.blocks, id)
    assert used(cache) == 1, "a tail is replaced by the block that it grows into"
    assert handle.blocks.tokens == 4
    *_, third = store(cache, FIRST)
    assert third is not None
    cache.uses.extend(handle.blocks, third)
    assert used(cache) == 1, "it has not made the second block"
    cache.leave(handle)
    second = cache.index.block(block_key(cache.root(b""), FIRST[:4]))
    assert second is not None
    cache.uses.extend(handle.blocks, second.id)
    assert used(cache) == 0, "it is not at work any more"


def test_choices_share_their_blocks_and_end_one_by_one(cache: PrefixCache) -> None:
    store(cache, FIRST)
    handle = begin(cache, FIRST)
    first, other = cache.uses.share(handle.blocks), cache.uses.share(handle.blocks)
    cache.leave(handle)
    assert used(cache) == 3
    cache.uses.end(first)
    cache.uses.end(first)
    assert used(cache) == 3
    cache.uses.end(other)
    assert used(cache) == 0


def test_a_short_beginning_may_be_there_twice() -> None:
    copying = PrefixCache(replace(KV, refers=True, copies=8), "model", ROOMY)
    store(copying, FIRST)
    waiting = copying.enter(FIRST, b"", ())
    assert copying.blocks_to_use(waiting, 8) == (0, 2 * BYTES)
    assert copying.blocks_to_use(waiting, 12) == (12, 3 * BYTES)
    long, short = begin(copying, FIRST), begin(copying, FIRST[:9])
    assert (long.blocks.tokens, long.blocks.referred) == (12, 12)
    assert (short.blocks.tokens, short.blocks.referred) == (8, 0)
    assert copying.uses.share(short.blocks).referred == 0


def test_who_waits_is_told_what_it_would_keep_from_being_evicted(cache: PrefixCache) -> None:
    store(cache, FIRST)
    waiting = cache.enter(FIRST, b"", ())
    assert cache.blocks_to_use(waiting, 12) == (12, 3 * BYTES)
    assert cache.blocks_to_use(waiting, 11) == (8, 2 * BYTES)
    running = begin(cache, FIRST[:8])
    assert cache.blocks_to_use(waiting, 12) == (12, BYTES)
    cache.leave(running)
    assert cache.blocks_to_use(waiting, 12) == (12, 3 * BYTES)


def test_lost_blocks_go_with_all_that_follows_them_whoever_uses_them(cache: PrefixCache) -> None:
    first, second, third = store(cache, FIRST)
    store(cache, OTHER)
    handle, other = begin(cache, FIRST), begin(cache, OTHER)
    assert second is not None
    cache.eviction.drop_lost([second])
    assert set(cache.eviction.take_evicted()) == {second, third}
    assert used(cache) == 4
    cache.leave(handle)
    assert used(cache) == 3
    assert first is not None and cache.index.entry(first)
    cache.leave(other)
    assert used(cache) == 0


def test_blocks_that_were_removed_while_in_use_are_no_longer_referred_to(
    cache: PrefixCache,
) -> None:
    """Their bytes are the caches' own then, and must not be missing in the next step's plan."""
    store(cache, FIRST)
    handle, other = begin(cache, FIRST), begin(cache, FIRST[:11])
    cache.forget(cache.root(b""), FIRST, 4)
    cache.uses.forget_removed([handle.blocks, other.blocks])
    assert handle.blocks.tokens == other.blocks.tokens == 4 and used(cache) == 1
    cache.leave(handle)
    cache.leave(other)
    assert used(cache) == 0


def test_nothing_that_has_just_left_goes_to_the_cold_tier_after_a_fault() -> None:
    cache = PrefixCache(KV, "model", ROOMY, ColdIndex(1 << 30))
    store(cache, FIRST)
    cache.budget = HotBudget(0, 0)
    cache.forget(cache.root(b""), FIRST, 0)
    assert cache.eviction.has_evicted and cache.take_demoted() == []
