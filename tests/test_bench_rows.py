"""`scripts/bench rows`, on a tiny model: what it measures is there and adds up."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scripts.benchmarks import pairs_report, rows_shared
from scripts.benchmarks.metrics import Metric, find
from scripts.benchmarks.progress import Lines
from scripts.benchmarks.rows_measure import OURS, PADDED, RowsBench, requirements, shapes
from scripts.benchmarks.rows_plan import RowsPlan
from scripts.benchmarks.rows_shared import SharedBench
from tests.tiny_models import load_tiny

PLAN = RowsPlan(long=4096, short=20, beside=3, equal=2, agents=4, shared=3000, steps=1, repeats=2)


@pytest.fixture(scope="module")
def metrics() -> list[Metric]:
    loaded = load_tiny("llama")
    before = loaded.model.make_cache
    found = RowsBench(loaded, PLAN).run(Lines(len(shapes(PLAN))))
    found += SharedBench(loaded, PLAN).run()
    assert loaded.model.make_cache != before, "it has made its own"
    return found


def median(metrics: list[Metric], name: str, kind: str) -> float:
    metric = find(metrics, name)
    value = metric.median(kind) if metric else None
    assert value is not None, name
    return value


def test_the_padded_batch_is_as_wide_as_its_longest_row(metrics: list[Metric]) -> None:
    ours, padded = (median(metrics, "held_mixed", kind) for kind in (OURS, PADDED))
    alone = median(metrics, "held_long", PADDED)
    assert padded > 3.5 * alone
    assert ours < 2 * alone


def test_equal_rows_are_held_alike(metrics: list[Metric]) -> None:
    ours, padded = (median(metrics, "held_equal", kind) for kind in (OURS, PADDED))
    assert ours == pytest.approx(padded, rel=0.1)


def test_a_row_that_joins_moves_no_other(metrics: list[Metric]) -> None:
    ours, padded = (median(metrics, "join_peak", kind) for kind in (OURS, PADDED))
    assert ours < padded / 3


def test_what_is_shared_is_there_once(metrics: list[Metric]) -> None:
    distinct, stored, agents = (
        median(metrics, name, OURS) for name in ("distinct", "held_stored", "held_agents")
    )
    assert stored < 1.15 * distinct
    assert agents < 1.5 * distinct
    assert median(metrics, "held_stored", PADDED) > 1.9 * distinct
    assert median(metrics, "held_agents", PADDED) > 4.5 * distinct


def test_a_hit_takes_room_for_its_own_tokens_only(metrics: list[Metric]) -> None:
    ours, padded = (median(metrics, "hit_bytes", kind) for kind in (OURS, PADDED))
    assert ours < padded / 8


def test_the_report_has_every_metric_and_requirement(metrics: list[Metric], tmp_path: Path) -> None:
    required = [*requirements(metrics, PLAN), *rows_shared.requirements(metrics, PLAN)]
    assert all(requirement.value is not None for requirement in required)
    now = datetime.now(UTC)
    sides = (OURS, PADDED)
    report = pairs_report.PairsReport(now, {"cores": 2}, "tiny", PLAN, sides, metrics, required)
    pairs_report.write(report, tmp_path / "rows.json")
    text = pairs_report.markdown(report)
    for metric in metrics:
        assert metric.spec.title in text
        assert metric.spec.name in (tmp_path / "rows.json").read_text()
    assert all(requirement.title in text for requirement in required)
    pairs_report.tables(report)
    nothing_required = replace(report, requirements=())
    assert text.startswith(pairs_report.markdown(nothing_required))
    assert "required" not in pairs_report.markdown(nothing_required)
    assert len(pairs_report.tables(nothing_required).renderables) == 1
