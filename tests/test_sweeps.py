"""Which cases of a sweep run every day."""

from typing import Any

from tests.sweeps import sweep, wide


def every_day(cases: list[Any]) -> list[tuple[Any, ...]]:
    return [case.values for case in cases if not case.marks]


def test_each_value_of_each_axis_runs_every_day() -> None:
    cases = sweep("abc", range(5))
    assert len(cases) == 15
    assert every_day(cases) == [("a", 0), ("a", 3), ("b", 1), ("b", 4), ("c", 2)]


def test_one_axis_runs_whole() -> None:
    assert every_day(sweep("abc")) == [("a",), ("b",), ("c",)]


def test_what_is_wide_does_not() -> None:
    assert every_day(wide(["a", ("b", 1)])) == []
    assert [case.values for case in wide(["a", ("b", 1)])] == [("a",), ("b", 1)]
