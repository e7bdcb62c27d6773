"""`scripts/bench speculation`, on a tiny model: answers are the same with drafts, and counted."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from omlx_server.core.request import SamplingParams
from scripts.benchmarks import comparison
from scripts.benchmarks.metrics import Metric
from scripts.benchmarks.progress import Lines
from scripts.benchmarks.speculation_measure import (
    Foretold,
    SpeculationBench,
    measured,
    requirements,
)
from scripts.benchmarks.speculation_plan import SPECULATION_QUICK, WITH, WITHOUT
from scripts.benchmarks.speculation_texts import Task
from tests.compute.drive import LIMITS, Drive
from tests.tiny_models import load_tiny

TASKS = [
    Task("edit_1", "an edit", (5, 6, 7, 8) * 4, SamplingParams(max_tokens=20, temperature=0), 1),
    Task("prose_1", "prose", (1, 9, 4), SamplingParams(max_tokens=20, seed=4), 1),
    Task("prose_8", "prose, 3 streams", (1, 9, 4), SamplingParams(max_tokens=20), 3),
]


@pytest.fixture(scope="module")
def metrics() -> list[Metric]:
    instance = Drive(load_tiny("llama"), LIMITS, 16).instance
    return measured([SpeculationBench(instance, LIMITS, TASKS)], 2, Lines(2))


def test_every_task_is_measured_both_ways(metrics: list[Metric]) -> None:
    names = ["edit_1", "prose_1", "prose_1_right", "prose_1_wrong", "prose_8"]
    assert [metric.spec.name for metric in metrics] == names
    assert all(metric.median(side) for metric in metrics for side in (WITH, WITHOUT))


def test_an_answer_that_differs_is_an_error() -> None:
    instance = Drive(load_tiny("llama"), LIMITS, 16).instance
    runs = iter((1, 2))

    class Odd(SpeculationBench):
        def _request(self, task: Task, stream: int) -> object:  # type: ignore[override]
            asked = super()._request(task, stream)
            return replace(asked, sampling=replace(asked.sampling, max_tokens=9 + next(runs)))

    with pytest.raises(RuntimeError, match="an edit: the answers differ"):
        Odd(instance, LIMITS, TASKS[:1]).round()


def test_a_foretold_answer_is_drafted_from_where_the_row_is() -> None:
    lookup = Foretold(3, [7, 8, 9, 10])
    assert lookup.draft(2) == (7, 8)
    assert lookup.take([7, 5]) == (1, 2)
    assert len(lookup) == 5 and lookup.draft(5) == (9, 10)


def test_the_report_has_every_metric_and_requirement(metrics: list[Metric], tmp_path: Path) -> None:
    required, now, sides = requirements(metrics), datetime.now(UTC), (WITH, WITHOUT)
    report = comparison.Comparison(
        now, {"cores": 2}, "tiny", SPECULATION_QUICK, sides, metrics, required
    )
    comparison.write(report, tmp_path / "speculation.json")
    text = comparison.markdown(report)
    for metric in metrics:
        assert metric.spec.title in text
        assert metric.spec.name in (tmp_path / "speculation.json").read_text()
    comparison.tables(report)
