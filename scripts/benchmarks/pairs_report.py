"""The result of a bench that compares two sides: as JSON, as tables, in Markdown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group

from omlx_server.compute.hardware import device
from scripts.benchmarks import command_line, table
from scripts.benchmarks.markdown import pipes
from scripts.benchmarks.metrics import Metric, Requirement
from scripts.benchmarks.report import describe_machine, now
from scripts.benchmarks.table import ARROWS, VERDICTS

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class PairsReport:
    """Everything that one run found. `plan` is a dataclass; ratios are of the first of the `sides`
    to the other."""

    created: datetime
    machine: Mapping[str, str | int]
    model: str
    plan: Any
    sides: tuple[str, str]
    metrics: Sequence[Metric]
    requirements: Sequence[Requirement]


def publish(
    name: str,
    out: Path,
    *,
    model: str,
    plan: Any,
    sides: tuple[str, str],
    metrics: Sequence[Metric],
    requirements: Sequence[Requirement],
) -> None:
    """Write NAME.json and NAME.md into `out`, and show the tables, of what was found just now on
    this machine."""
    machine = describe_machine(device.name())
    found = PairsReport(now(), machine, model, plan, sides, metrics, requirements)
    command_line.publish(
        name, out, write=partial(write, found), markdown=markdown(found), tables=tables(found)
    )


def write(report: PairsReport, path: Path) -> None:
    """As JSON. `rounds` holds the value of each side in each round."""
    content = {
        "schema": _SCHEMA,
        "created": report.created.isoformat(),
        "machine": dict(report.machine),
        "model": report.model,
        "plan": asdict(report.plan),
        "metrics": [_metric(metric, report.sides) for metric in report.metrics],
        "requirements": [{**asdict(r), "met": r.met} for r in report.requirements],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tables(report: PairsReport) -> Group:
    caption = "↑ more is better, ↓ less is better; ratios within a round, medians"
    shown = table.of_rows(report.model, _header(report), _rows(report), caption)
    required = report.requirements
    return Group(shown, *([table.requirements(required, "Required")] if required else []))


def markdown(report: PairsReport) -> str:
    """The same tables, for the docs."""
    required = [[*table.in_words(r), VERDICTS[r.met][0]] for r in report.requirements]
    header = ("what is required", "bound", "measured", "")
    below = ["", *pipes(header, required)] if required else []
    return "\n".join([*pipes(_header(report), _rows(report)), *below, ""])


def _header(report: PairsReport) -> tuple[str, ...]:
    one, other = report.sides
    return "", "unit", one, other, f"{one} / {other}"


def _rows(report: PairsReport) -> Iterator[Sequence[str]]:
    for metric in report.metrics:
        one, other = report.sides
        ratio = metric.ratio(one, other)
        yield (
            metric.spec.title,
            f"{metric.spec.unit} {ARROWS[metric.spec.better]}",
            table.number(metric.median(one)),
            table.number(metric.median(other)),
            "" if ratio is None else f"{ratio:.2f}",
        )


def _metric(metric: Metric, sides: Sequence[str]) -> dict[str, object]:
    medians = {side: metric.median(side) for side in sides}
    rounds = [dict(values) for values in metric.rounds]
    return {**asdict(metric.spec), "rounds": rounds, "median": medians}
