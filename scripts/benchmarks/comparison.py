"""The result of a bench that compares sides: as JSON, as tables, in Markdown."""

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
_REQUIRED = ("what is required", "bound", "measured", "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one run. `plan` is a dataclass. Ratios are of each side to the last one."""

    created: datetime
    machine: Mapping[str, str | int]
    model: str
    plan: Any
    sides: tuple[str, ...]
    metrics: Sequence[Metric]
    requirements: Sequence[Requirement]


def publish(
    name: str,
    out: Path,
    *,
    model: str,
    plan: Any,
    sides: tuple[str, ...],
    metrics: Sequence[Metric],
    requirements: Sequence[Requirement],
) -> None:
    """Write NAME.json and NAME.md into `out`, and show the tables."""
    machine = describe_machine(device.name())
    result = Comparison(now(), machine, model, plan, sides, metrics, requirements)
    command_line.publish(
        name, out, write=partial(write, result), markdown=markdown(result), tables=tables(result)
    )


def write(result: Comparison, path: Path) -> None:
    """Write JSON. `rounds` holds the value of each side in each round."""
    content = {
        "schema": _SCHEMA,
        "created": result.created.isoformat(),
        "machine": dict(result.machine),
        "model": result.model,
        "plan": asdict(result.plan),
        "metrics": [_metric(metric, result.sides) for metric in result.metrics],
        "requirements": [{**asdict(r), "met": r.met} for r in result.requirements],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tables(result: Comparison) -> Group:
    caption = "↑ more is better, ↓ less is better; ratios within a round, medians"
    shown = table.of_rows(result.model, _header(result), _rows(result), caption)
    required = result.requirements
    return Group(shown, *([table.requirements(required, "Required")] if required else []))


def markdown(result: Comparison) -> str:
    required = [[*table.in_words(r), VERDICTS[r.met][0]] for r in result.requirements]
    below = ["", *pipes(_REQUIRED, required)] if required else []
    return "\n".join([*pipes(_header(result), _rows(result)), *below, ""])


def _header(result: Comparison) -> tuple[str, ...]:
    *others, base = result.sides
    return "", "unit", *result.sides, *(f"{side} / {base}" for side in others)


def _rows(result: Comparison) -> Iterator[Sequence[str]]:
    *others, base = result.sides
    for metric in result.metrics:
        ratios = (metric.ratio(side, base) for side in others)
        yield (
            metric.spec.title,
            f"{metric.spec.unit} {ARROWS[metric.spec.better]}",
            *(table.number(metric.median(side)) for side in result.sides),
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )


def _metric(metric: Metric, sides: Sequence[str]) -> dict[str, object]:
    medians = {side: metric.median(side) for side in sides}
    rounds = [dict(values) for values in metric.rounds]
    return {**asdict(metric.spec), "rounds": rounds, "median": medians}
