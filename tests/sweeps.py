"""Sweeps: the same law for many kinds and seeds. The tests of every day take one case of each
value; `--wide` takes all of them."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def sweep(*axes: Iterable[Any]) -> list[Any]:
    """Parameters: the product of the axes. All but one case of each value are wide."""
    values = [list(axis) for axis in axes]
    every_day = {
        tuple(number % len(axis) for axis in values) for number in range(max(map(len, values)))
    }
    cases = list[Any]()
    for place in product(*(range(len(axis)) for axis in values)):
        case = tuple(axis[at] for axis, at in zip(values, place, strict=True))
        cases += [pytest.param(*case)] if place in every_day else wide([case])
    return cases


def daily(values: Iterable[Any], chosen: Iterable[Any]) -> list[Any]:
    """Parameters: all values. All but the chosen ones are wide."""
    return [value if value in set(chosen) else wide([value])[0] for value in values]


def wide(cases: Iterable[Any]) -> list[Any]:
    """Parameters that are wide, all of them."""
    return [pytest.param(*_values(case), marks=pytest.mark.wide) for case in cases]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
