"""Sweeps: the same law for many kinds and seeds. The tests of every day take one case of each
value; `--wide` takes all of them."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest


def sweep(*axes: Iterable[Any]) -> list[Any]:
    """Parameters: the product of the axes. All but one case of each value are wide."""
    values = [list(axis) for axis in axes]
    every_day = {
        tuple(number % len(axis) for axis in values) for number in range(max(map(len, values)))
    }
    places = product(*(range(len(axis)) for axis in values))
    return [_case(values, place, wide=place not in every_day) for place in places]


def wide(cases: Iterable[Any]) -> list[Any]:
    """Parameters that are wide, all of them."""
    return [pytest.param(*_values(case), marks=pytest.mark.wide) for case in cases]


def _case(axes: Sequence[Sequence[Any]], place: tuple[int, ...], *, wide: bool) -> Any:
    case = [axis[at] for axis, at in zip(axes, place, strict=True)]
    return pytest.param(*case, marks=pytest.mark.wide if wide else ())


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
