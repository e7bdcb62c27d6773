"""What of a conversation stays, whatever it is made of."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.core.window import Unit, Window, just_enough

bounded = settings(max_examples=500, deadline=None, derandomize=True)


def conversation(turns: Sequence[tuple[int, Sequence[int]]]) -> list[Unit]:
    """(the user's words, its rounds): the last round of a turn is an answer, others are calls."""
    units = []
    for number, (words, rounds) in enumerate(turns):
        units.append(Unit(number, words, head=True, asks=True))
        units += [
            Unit(number, cost, asks=position < len(rounds) - 1)
            for position, cost in enumerate(rounds)
        ]
    return units


_TURNS = st.lists(
    st.tuples(st.integers(1, 30), st.lists(st.integers(1, 40), min_size=1, max_size=4)),
    min_size=1,
    max_size=25,
)
_WINDOWS = st.builds(
    lambda limit, share, front: Window(limit, int(limit * share), front),
    st.integers(150, 400),
    st.floats(0.2, 0.9),
    st.integers(0, 40),
)


def cost(units: Sequence[Unit], kept: Sequence[bool], front: int = 0) -> int:
    return front + sum(unit.cost for unit, stays in zip(units, kept, strict=True) if stays)


@bounded
@given(window=_WINDOWS, turns=_TURNS)
def test_what_stays_fits_and_is_whole(window: Window, turns: list[tuple[int, list[int]]]) -> None:
    units = conversation(turns)
    for policy in (window.kept, lambda u: just_enough(u, window.limit, window.front)):
        kept = policy(units)
        assert kept is not None
        assert cost(units, kept, window.front) <= window.limit
        assert kept[-1]
        last = units[-1].turn
        for (unit, stays), (_, after) in pairwise(zip(units, kept, strict=True)):
            assert not (stays and not after) or unit.head
        for unit, stays in zip(units, kept, strict=True):
            assert stays or not (unit.head and unit.turn == last)
        heads = [s for u, s in zip(units, kept, strict=True) if u.head]
        assert heads == sorted(heads), "the oldest turns go first"


@bounded
@given(window=_WINDOWS, turns=_TURNS)
def test_what_fits_stays_whole(window: Window, turns: list[tuple[int, list[int]]]) -> None:
    units = conversation(turns)
    if cost(units, [True] * len(units), window.front) <= window.limit:
        assert window.kept(units) == [True] * len(units)


@bounded
@given(window=_WINDOWS, turns=_TURNS)
def test_the_cut_stays_until_more_must_go(
    window: Window, turns: list[tuple[int, list[int]]]
) -> None:
    """Every request of a conversation: the units before it are kept as they were, or it is over
    the limit and the cut goes down to the low-water mark."""
    units = conversation(turns)
    before: list[bool] | None = None
    for end in range(1, len(units) + 1):
        if not units[end - 1].asks:
            continue
        kept = window.kept(units[:end])
        assert kept is not None
        if before is not None and kept[: len(before)] != before:
            grown = cost(units[:end], [*before, *[True] * (end - len(before))], window.front)
            assert grown > window.limit
            gone = [i for i, stays in enumerate(kept) if not stays]
            turn = units[end - 1].turn
            could_go = [
                i
                for i, stays in enumerate(kept[:-1])
                if stays and not (units[i].turn == turn and units[i].head)
            ]
            assert cost(units[:end], kept, window.front) <= window.low or not could_go
            assert gone
        before = kept


@pytest.mark.parametrize("front", [0, 100])
def test_what_must_stay_can_be_too_much(front: int) -> None:
    units = conversation([(10, [10]), (90, [5])])
    assert Window(90, 45, front).kept(units[:3]) == (None if front else [False, False, True])
    assert just_enough(units[:3], 80, 0) is None


def test_rounds_of_a_long_turn_go_oldest_first() -> None:
    units = conversation([(10, [30, 30, 30, 30])])
    kept = Window(100, 50).kept(units[:4])
    assert kept == [True, True, True, True]
    assert Window(99, 50).kept(units[:4]) == [True, False, False, True]
    assert just_enough(units[:4], 99, 0) == [True, False, True, True]
