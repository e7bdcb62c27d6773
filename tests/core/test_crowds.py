"""The laws of turns, in random crowds of clients (tests/core/crowds.py): the first token of every
request comes within the time that was told, and a client with work has at least half of its share.
"""

from collections.abc import Callable
from typing import Any

import pytest

from omlx_server.core.scheduler.order import PrefillOrder
from omlx_server.core.virtual_times import VirtualTimes
from tests.core.crowds import Late, Unfair, drawn

SEEDS = range(12)
SECONDS = 65.0


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_waits_longer_than_told_or_has_less_than_half_of_its_share(seed: int) -> None:
    crowd = drawn(seed, SECONDS)
    crowd.live()
    assert crowd.waits


def nothing(*given: Any) -> None:
    pass


FLAWS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "a share that forgets rows": (PrefillOrder, "_charge_rows", nothing),
    "ageing that never ends a wait": (PrefillOrder, "_find_urgent", nothing),
    "newcomers that start at nothing": (VirtualTimes, "_enter", nothing),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_planted_flaws_are_found(monkeypatch: pytest.MonkeyPatch, flaw: str) -> None:
    owner, method, broken = FLAWS[flaw]
    monkeypatch.setattr(owner, method, broken)
    with pytest.raises((Late, Unfair)):
        for seed in range(100):
            drawn(seed, SECONDS).live()
