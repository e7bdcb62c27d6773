"""The result of `scripts/bench rows`: as JSON, as tables for the terminal and in Markdown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Group

from scripts.benchmarks import table
from scripts.benchmarks.markdown import pipes
from scripts.benchmarks.metrics import Metric, Requirement
from scripts.benchmarks.rows_measure import OURS, PADDED
from scripts.benchmarks.rows_plan import RowsPlan
from scripts.benchmarks.table import ARROWS, VERDICTS

_SCHEMA = 1
_HEADER = ("", "unit", "ours", "padded", "ours / padded")


@dataclass(frozen=True, slots=True)
class RowsReport:
    """Everything that one run found."""

    created: datetime
    machine: Mapping[str, str | int]
    model: str
    plan: RowsPlan
    metrics: Sequence[Metric]
    requirements: Sequence[Requirement]


def write(report: RowsReport, path: Path) -> None:
    """The schema of rows.json. `rounds` holds the value of each kind of caches in each round."""
    content = {
        "schema": _SCHEMA,
        "created": report.created.isoformat(),
        "machine": dict(report.machine),
        "model": report.model,
        "plan": asdict(report.plan),
        "metrics": [_metric(metric) for metric in report.metrics],
        "requirements": [{**asdict(r), "met": r.met} for r in report.requirements],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tables(report: RowsReport) -> Group:
    caption = "↓ less is better; ratios within a round, medians"
    shown = table.of_rows(report.model, _HEADER, _rows(report), caption)
    return Group(shown, table.requirements(report.requirements, "Required"))


def markdown(report: RowsReport) -> str:
    """The same tables, for the docs."""
    required = ([*table.in_words(r), VERDICTS[r.met][0]] for r in report.requirements)
    header = ("what is required", "bound", "measured", "")
    return "\n".join([*pipes(_HEADER, _rows(report)), "", *pipes(header, required), ""])


def _rows(report: RowsReport) -> Iterator[Sequence[str]]:
    for metric in report.metrics:
        ratio = metric.ratio(OURS, PADDED)
        yield (
            metric.spec.title,
            f"{metric.spec.unit} {ARROWS[metric.spec.better]}",
            table.number(metric.median(OURS)),
            table.number(metric.median(PADDED)),
            "" if ratio is None else f"{ratio:.2f}",
        )


def _metric(metric: Metric) -> dict[str, object]:
    medians = {kind: metric.median(kind) for kind in (OURS, PADDED)}
    rounds = [dict(values) for values in metric.rounds]
    return {**asdict(metric.spec), "rounds": rounds, "median": medians}
