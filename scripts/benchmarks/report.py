"""The result of a run as a value, and as JSON."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omlx_server import __version__
from omlx_server.compute import FAST_BLAS
from scripts.benchmarks.metrics import SYSTEMS, Metric, Requirement
from scripts.benchmarks.plan import Plan

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run of the benchmark found."""

    created: datetime
    machine: Mapping[str, str | int]
    model: str
    plan: Plan
    metrics: list[Metric]
    requirements: list[Requirement]

    @property
    def systems(self) -> list[str]:
        """Those that were measured, in the order of the table."""
        measured = {name for metric in self.metrics for values in metric.rounds for name in values}
        return [name for name in SYSTEMS if name in measured]

    @property
    def baselines(self) -> list[str]:
        """What our server is compared with."""
        return [name for name in self.systems if name != "ours"]


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def describe_machine(device: str) -> dict[str, str | int]:
    """What a number depends on besides the code. Nothing that tells whose machine it is."""
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "device": device,
        "blas": FAST_BLAS or "the one in the mlx wheel",
        "omlx_server": __version__,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
    }


def as_json(report: Report) -> dict[str, Any]:
    """The schema of bench.json. `rounds` holds the value of each system in each round."""
    return {
        "schema": SCHEMA,
        "created": report.created.isoformat(),
        "machine": dict(report.machine),
        "model": report.model,
        "plan": asdict(report.plan),
        "systems": {name: SYSTEMS[name] for name in report.systems},
        "metrics": [_metric(metric, report) for metric in report.metrics],
        "requirements": [{**asdict(r), "met": r.met} for r in report.requirements],
    }


def write(report: Report, path: Path) -> None:
    text = json.dumps(as_json(report), indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _metric(metric: Metric, report: Report) -> dict[str, Any]:
    return {
        **asdict(metric.spec),
        "rounds": [dict(values) for values in metric.rounds],
        "median": {name: metric.median(name) for name in report.systems},
        "ratio": {f"ours/{name}": metric.ratio("ours", name) for name in report.baselines},
    }
