"""Where a prompt leaves what is cached, by example."""

from itertools import pairwise

import pytest

from omlx_server.core.cold.index import ColdIndex
from omlx_server.core.prefix_cache.divergence import Divergence, Tier, divergence
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core.stored import cache_with, chill, store

A = tuple(range(100, 114))  # three blocks and two tokens
ROOM = 1 << 30


def compared(cache: PrefixCache, *tokens: int, most: int = 64) -> Divergence:
    cache.index.check_invariants()
    return divergence(cache, tokens, b"", most)


def stretches(found: Divergence) -> list[tuple[int, int, str | None]]:
    return [(one.start, one.stop, one.tier) for one in found.stretches]


def test_a_prompt_that_is_all_there_diverges_nowhere() -> None:
    found = compared(cache_with(A), *A)
    assert found.diverges_at is None and found.stored == ()
    assert found.cached == len(A) - 1
    assert stretches(found) == [(0, 4, "hot"), (4, 8, "hot"), (8, 12, "hot"), (12, 14, "hot")]
    assert compared(cache_with(A), *A, 7).diverges_at is None  # the last token is computed


@pytest.mark.parametrize("at", range(12))
def test_another_token_is_found_where_it_stands(at: int) -> None:
    found = compared(cache_with(A), *A[:at], 7, *A[at + 1 :])
    assert (found.diverges_at, found.cached, found.stored) == (at, at, A[at:])
    assert stretches(found)[-1] == (12, 14, None)
    assert sum(stop - start for start, stop, tier in stretches(found) if tier) == at
    spans = [(start, stop) for start, stop, _ in stretches(found)]
    assert all(one[1] == next_[0] for one, next_ in pairwise(spans))


def test_a_prompt_that_goes_on_leaves_at_the_end_of_what_is_there() -> None:
    found = compared(cache_with(A), *A, 1, 2, 3)
    assert (found.diverges_at, found.stored) == (14, ())


def test_what_is_stored_is_of_the_branch_that_was_used_last() -> None:
    cache = cache_with((*A[:8], 1, 2, 3, 4), (*A[:8], 5, 6, 7, 8))
    assert compared(cache, *A).stored == (5, 6, 7, 8)
    cache.index.touch(cache.index.match(cache.root(b""), (*A[:8], 1, 2, 3, 4)).blocks[-1])
    assert compared(cache, *A).stored == (1, 2, 3, 4)
    assert compared(cache, *A, most=2).stored == (1, 2)


def test_of_another_salt_nothing_is_known() -> None:
    found = divergence(cache_with(A), A, b"another", 64)
    assert (found.diverges_at, found.cached, found.stored) == (0, 0, ())


def test_what_the_cold_tier_has_counts_too() -> None:
    cache = cache_with(A[:8], cold=ColdIndex(ROOM))
    chill(cache, A)
    found = compared(cache, *A[:13], 7, 8)
    assert (found.diverges_at, found.stored) == (13, A[13:])
    assert stretches(found) == [
        *((0, 4, Tier.HOT), (4, 8, Tier.HOT), (8, 12, Tier.COLD)),
        *((12, 13, Tier.COLD), (13, 15, None)),
    ]


def test_a_cold_block_goes_on_where_a_hot_one_is_cut() -> None:
    cache = cache_with((*A[:6], 1, 2), cold=ColdIndex(ROOM))
    chill(cache, A)
    found = compared(cache, *A[:9], 7, 8)
    assert (found.diverges_at, found.stored) == (9, A[9:])
    assert stretches(found)[1:3] == [(4, 6, Tier.HOT), (6, 8, Tier.COLD)]


def test_where_the_hot_tier_has_more_the_cold_one_is_not_told() -> None:
    cache = cache_with(A, cold=ColdIndex(ROOM))
    chill(cache, A[:8])
    found = compared(cache, *A[:10], 7, 8)
    assert (found.diverges_at, found.stored) == (10, A[10:])
    assert {tier for _, _, tier in stretches(found)} == {Tier.HOT, None}


def test_it_changes_nothing() -> None:
    cache = cache_with(A, (*A[:4], 1, 2, 3, 4))
    before = [block.used for block in cache.index.blocks()]
    compared(cache, *A[:6], 7, 8)
    compared(cache, 1)
    assert [block.used for block in cache.index.blocks()] == before
    assert cache.report().queried_tokens == 0


def test_an_empty_cache_has_nothing() -> None:
    found = compared(cache_with(), *A)
    assert (found.diverges_at, found.stored, found.cached) == (0, (), 0)
    cache = cache_with()
    store(cache, A)
    cache.reset()
    assert compared(cache, *A).diverges_at == 0
