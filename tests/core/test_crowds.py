"""The laws of turns, in random crowds of clients (tests/core/crowds.py): the first token of every
request comes within the time that was told, and a client with work has at least half of its share.
"""

from typing import Any

import pytest

from omlx_server.core.scheduler.order import PrefillOrder
from tests.core.crowds import Late, Unfair, drawn, small
from tests.sweeps import wide

SEEDS = (3, 10)
MORE_SEEDS = (1, 2, 4, 6, 7, 8)
SECONDS = 65.0


@pytest.mark.parametrize("seed", [*SEEDS, *wide(MORE_SEEDS)])
def test_nobody_waits_longer_than_told_or_has_less_than_half_of_its_share(seed: int) -> None:
    crowd = drawn(seed, SECONDS)
    crowd.live()
    assert crowd.waits


@pytest.mark.parametrize("first", [0, *wide([20, 40, 60])])
def test_nobody_starves_in_small_crowds(first: int) -> None:
    # An urgent prompt waited for another's row, one under way made way too near to its time, and
    # one waited for the chunks of others in its step.
    hard = 3806, 30769, 104141
    for seed in (*range(first, first + 20), *hard):
        small(seed).live()


def nothing(*given: Any) -> None:
    pass


FLAWS = {
    "a share that forgets rows": ("_charge_rows", 10, Unfair),
    "ageing that never ends a wait": ("_mark_urgent", 15, Late),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_planted_flaws_are_found(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    """By some crowds; these are the quickest."""
    method, seed, found = FLAWS[flaw]
    monkeypatch.setattr(PrefillOrder, method, nothing)
    with pytest.raises(found):
        drawn(seed, SECONDS).live()
