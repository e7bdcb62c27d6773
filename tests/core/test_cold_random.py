"""The prefix cache over a cold tier by random operations: the naive walk, with a second floor.

What leaves the hot tier goes to a pretend medium, comes back late, in any order or not at all; the
process restarts over it. The payloads are the tokens themselves, as in the walk without it.
"""

import pytest

from tests.core.cold_walk import ColdWalk

STEPS = 10_000  # times 8 seeds


@pytest.mark.parametrize("layout", range(4))
def test_two_tiers_are_the_naive_cache_with_budgets(layout: int) -> None:
    walks = [ColdWalk(layout), ColdWalk(layout + 4)]  # reads in order, and in any order
    for walk in walks:
        for number in range(STEPS):
            walk.step()
            if number % 5 == 0:
                walk.check()
        walk.check_end()
        went = min(walk.hits, walk.recalled, walk.demoted, walk.gone)
        assert went > 20, "it hardly goes anywhere"
        assert walk.failed > 0
    assert sum(walk.fulfilled for walk in walks) > 0
