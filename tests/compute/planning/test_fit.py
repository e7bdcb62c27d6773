"""Least squares without negative coefficients."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omlx_server.compute.planning.fit import fit


def dot(row: tuple[float, ...], factors: tuple[float, ...]) -> float:
    return sum(a * b for a, b in zip(row, factors, strict=True))


factors = st.tuples(*[st.floats(0.0, 10.0)] * 3)
rows = st.lists(st.tuples(*[st.floats(1.0, 1e9)] * 3), min_size=1, max_size=10)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(rows=rows, measured=st.data())
def test_no_factor_is_negative_and_nothing_measured_is_above(
    rows: list[tuple[float, ...]], measured: st.DataObject
) -> None:
    values = [measured.draw(st.floats(1.0, 1e9)) for _ in rows]
    found = fit(rows, values)
    assert min(found) >= 0
    for row, value in zip(rows, values, strict=True):
        assert dot(row, found) >= value * (1 - 1e-6)


def test_what_was_made_of_factors_gives_them_back() -> None:
    draw = random.Random(1)
    for _ in range(50):
        made = tuple(draw.choice([0.0, 0.5, 1.0, 2.5, 7.0]) for _ in range(4))
        if not any(made):
            continue
        rows = [tuple(10 ** draw.uniform(2, 8) for _ in made) for _ in range(12)]
        assert fit(rows, [dot(row, made) for row in rows]) == pytest.approx(made, abs=2e-3)


def test_columns_that_are_multiples_of_each_other() -> None:
    rows = [(float(n), 3.0 * n, 100.0) for n in range(1, 8)]
    found = fit(rows, [2.0 * n + 50 for n in range(1, 8)])
    assert [dot(row, found) for row in rows] == pytest.approx(
        [2.0 * n + 50 for n in range(1, 8)], rel=1e-3
    )


def test_one_odd_row_does_not_raise_all_others() -> None:
    """The others are met by the first column, the odd one by the second."""
    rows = [(float(n), 1.0) for n in (10, 20, 40, 80)] + [(1.0, 30.0)]
    measured = [10.0, 20.0, 40.0, 80.0, 31.0]
    found = fit(rows, measured)
    assert dot(rows[3], found) < 1.1 * 80
    assert dot(rows[4], found) >= 31 * (1 - 1e-9)


def test_a_row_that_is_too_low_is_met_where_it_differs() -> None:
    """Not by raising what the others have in common with it."""
    rows = [(100.0, 1.0), (200.0, 1.0), (400.0, 2.0), (10.0, 10.0)]
    measured = [110.0, 200.0, 390.0, 60.0]
    found = fit(rows, measured)
    over = [dot(row, found) / value for row, value in zip(rows, measured, strict=True)]
    assert min(over) >= 1 - 1e-9
    assert over[3] < 1.03


def test_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="needs measurements"):
        fit([], [])
    with pytest.raises(ValueError, match="above zero"):
        fit([(1.0,)], [0.0])
