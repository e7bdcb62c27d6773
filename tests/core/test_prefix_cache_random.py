"""The prefix cache by random operations, against a naive one: a dict of token tuples.

An alphabet of two letters and blocks of three find collisions that words would never find. The
payloads of the naive cache are the tokens themselves, so a hit on another sequence shows at once.
"""

import pytest

from tests.core.cache_walk import Walk

STEPS = 5_000  # times 20 seeds


@pytest.mark.parametrize("seed", range(20))
def test_the_cache_is_the_naive_one_with_a_budget(seed: int) -> None:
    walk = Walk(seed)
    for number in range(STEPS):
        walk.step()
        if number % 5 == 0:
            walk.check()
    walk.check_given_back()
    assert min(walk.hits, walk.evictions, walk.waits) > 50, "a walk that hardly goes anywhere"
