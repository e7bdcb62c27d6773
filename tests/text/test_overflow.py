"""What of a conversation stays, whatever it is made of."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.text.overflow import Unit, Window, just_enough

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


def naively(window: Window, units: Sequence[Unit]) -> list[bool] | None:
    """From the first unit on at every cut: what the window does in one go."""
    state, total = [True] * len(units), window.front
    for position, unit in enumerate(units):
        total += unit.cost
        if (unit.asks or position == len(units) - 1) and total > window.limit:
            for before in range(position):
                other = units[before]
                begins = before == 0 or units[before - 1].turn != other.turn
                if total <= window.low and (other.turn == unit.turn or begins):
                    break
                if state[before] and not (other.turn == unit.turn and other.head):
                    state[before] = False
                    total -= other.cost
    return state if total <= window.limit else None


_LONG_TURNS = st.lists(
    st.tuples(st.integers(1, 60), st.lists(st.integers(1, 90), max_size=30)), max_size=12
)


@bounded
@given(
    turns=_LONG_TURNS,
    limit=st.integers(20, 200),
    share=st.floats(0, 1),
    front=st.integers(0, 40),
    most=st.none() | st.integers(0, 30),
)
def test_the_choice_is_that_of_the_naive_form(
    turns: list[tuple[int, list[int]]], limit: int, share: float, front: int, most: int | None
) -> None:
    """Also where a unit that is over the limit by itself is not counted to its end."""
    window, units = Window(limit, int(limit * share), front), conversation(turns)
    counted = units
    if most is not None:
        counted = [replace(unit, cost=min(unit.cost, limit + 1 + most)) for unit in units]
    assert window.kept(counted) == naively(window, units)


class Watched(list[Unit]):
    """Counts how often a unit is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("head", [10, 5000])
def test_the_work_does_not_grow_with_the_square_of_the_rounds(head: int) -> None:
    """A long turn that is cut at nearly every round, and one whose words are too long already."""
    units = Watched(conversation([(5, [5]), (head, [40] * 4000)]))
    Window(100, 60).kept(units)
    assert units.looks < 12 * len(units)


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
