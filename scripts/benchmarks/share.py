"""The result of `scripts/bench` in the form of a shared self-test (`doctor/shareable.py`)."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omlx_server.doctor.finding import Finding, ok, warn
from omlx_server.doctor.shareable import shareable
from scripts.benchmarks.metrics import Better, Requirement
from scripts.benchmarks.report import Report, as_json

_KIND = "omlx-server bench"


def document(report: Report, *, quick: bool) -> dict[str, Any]:
    """The report as it is written: a check for each requirement that was measured, and all metrics
    as in bench.json."""
    known = as_json(report)
    measured = [each for each in report.requirements if each.value is not None]
    return shareable(
        _KIND,
        model={"name": report.model},
        settings=asdict(report.plan),
        checks=[(_finding(each), {"value": each.value, "bound": each.bound}) for each in measured],
        quick=quick,
        measured_on=known["machine"],
        systems=known["systems"],
        metrics=known["metrics"],
    )


def write(report: Report, file: Path, *, quick: bool) -> None:
    text = json.dumps(document(report, quick=quick), indent=2, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _finding(requirement: Requirement) -> Finding:
    least = "at least" if requirement.better is Better.HIGHER else "at most"
    says = f"{requirement.value:g}, {least} {requirement.bound:g} is wanted"
    if requirement.met:
        return ok(requirement.title, says)
    return warn(requirement.title, says, "close other programs and measure again")
