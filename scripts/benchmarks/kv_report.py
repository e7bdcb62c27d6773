"""The result of `scripts/bench kv`: as JSON, as tables for the terminal and in Markdown."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group as Stack
from rich.table import Table

from scripts.benchmarks import table
from scripts.benchmarks.kv_plan import KvPlan
from scripts.benchmarks.kv_quantities import Group
from scripts.benchmarks.kv_variants import PLAIN
from scripts.benchmarks.markdown import pipes
from scripts.benchmarks.metrics import Metric, Requirement, Spec
from scripts.benchmarks.table import ARROWS, VERDICTS

KV_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class KvReport:
    """Everything that one run found."""

    created: datetime
    machine: Mapping[str, str | int]
    model: str
    plan: KvPlan
    groups: list[Group]
    requirements: list[Requirement]


def as_json(report: KvReport) -> dict[str, Any]:
    """The schema of kv.json. `rounds` holds the value of each variant in each round."""
    return {
        "schema": KV_SCHEMA,
        "created": report.created.isoformat(),
        "machine": dict(report.machine),
        "model": report.model,
        "plan": asdict(report.plan),
        "groups": [_group(group) for group in report.groups],
        "requirements": [{**asdict(r), "met": r.met} for r in report.requirements],
    }


def write(report: KvReport, path: Path) -> None:
    text = json.dumps(as_json(report), indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def tables(report: KvReport) -> Stack:
    return Stack(*map(_table, report.groups), table.requirements(report.requirements, "Required"))


def markdown(report: KvReport) -> str:
    """The same tables, for the docs."""
    lines: list[str] = []
    for group in report.groups:
        lines += [f"### {group.title}", "", *pipes(_header(group), _rows(group)), ""]
    header = ["what is required", "bound", "measured", ""]
    rows = [[*table.in_words(r), VERDICTS[r.met][0]] for r in report.requirements]
    return "\n".join([*lines, "### Requirements", "", *pipes(header, rows), ""])


def _group(group: Group) -> dict[str, Any]:
    names = _variants(group)
    return {
        "name": group.name,
        "title": group.title,
        "metrics": [
            {
                **asdict(metric.spec),
                "rounds": [dict(values) for values in metric.rounds],
                "median": {name: metric.median(name) for name in names},
                "ratio": {f"{name}/none": metric.ratio(name, PLAIN.name) for name in names},
            }
            for metric in group.metrics
        ],
    }


def _table(group: Group) -> Table:
    caption = "↑ more is better, ↓ less is better"
    if group.relative:
        caption += "; of the variants the ratio to none, the median of those within a round"
    shown = Table(title=group.title, caption=caption)
    first, *others = _header(group)
    shown.add_column(first)
    for title in others:
        shown.add_column(title, justify="right")
    for row in _rows(group):
        shown.add_row(*row)
    return shown


def _header(group: Group) -> list[str]:
    return ["", *(_heading(metric.spec) for metric in group.metrics)]


def _heading(spec: Spec) -> str:
    return " ".join(filter(None, (spec.title, spec.unit, ARROWS[spec.better])))


def _rows(group: Group) -> Iterator[list[str]]:
    for name in _variants(group):
        yield [name, *(_cell(metric, name, relative=group.relative) for metric in group.metrics)]


def _cell(metric: Metric, name: str, *, relative: bool) -> str:
    if not relative or name == PLAIN.name:
        return table.number(metric.median(name))
    ratio = metric.ratio(name, PLAIN.name)
    return "" if ratio is None else f"{ratio:.2f} x"


def _variants(group: Group) -> list[str]:
    """In the order in which they were measured, plain caches first."""
    names = {name: None for metric in group.metrics for values in metric.rounds for name in values}
    return sorted(names, key=lambda name: name != PLAIN.name)
