"""What `scripts/bench page` requires, of windows that are made up."""

import pytest

from scripts.benchmarks.metrics import collect
from scripts.benchmarks.page_measure import Window, requirements, samples
from scripts.benchmarks.page_plan import WITH, WITHOUT


@pytest.mark.parametrize(("slower", "met"), [(1.0, True), (0.991, True), (0.98, False)])
def test_a_listener_may_cost_a_hundredth(slower: float, met: bool) -> None:
    rounds = [
        [
            *samples(1, WITH, Window(slower * rate, 1.0, 5)),
            *samples(1, WITHOUT, Window(rate, 1.0, 0)),
            *samples(10, WITH, Window(rate / 2, 1.0, 50)),
            *samples(10, WITHOUT, Window(rate, 1.0, 0)),
        ]
        for rate in (90.0, 100.0, 130.0)
    ]
    (required,) = requirements(collect(rounds))
    assert required.value == pytest.approx(slower)
    assert required.met is met


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    (required,) = requirements([])
    assert required.met is None
