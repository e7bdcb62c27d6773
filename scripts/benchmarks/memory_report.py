"""The result of `scripts/bench memory`: judged, as JSON, as tables, and in Markdown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group

from scripts.benchmarks import table
from scripts.benchmarks.memory_plan import (
    FLAT_RESERVE,
    JUDGED_BYTES,
    OVER,
    UNDER,
    WHOLE_OVER,
    WHOLE_UNDER,
    Case,
    Forward,
    MemoryPlan,
    in_words,
)

_SCHEMA = 2
_HEADER = ("forward", "measured", "estimate", "ratio", "guess", "flat", "bound", "whole", "")
_SUMMARY = ("model", "weights", "probes", "lowest", "highest", "whole", "guess", "flat", "")


@dataclass(frozen=True, slots=True)
class Line:
    """One forward of one model. Bytes; `guess` is the formula without a fit, `bound` the
    structural one; `whole` is everything that was held in arrays at the worst moment."""

    forward: Forward
    measured: int
    estimate: int
    guess: int
    bound: int
    whole: int
    whole_estimate: int

    @property
    def ratio(self) -> float:
        return self.estimate / self.measured

    @property
    def whole_ratio(self) -> float:
        return self.whole_estimate / self.whole

    @property
    def good(self) -> bool:
        return UNDER <= self.ratio <= OVER


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One model."""

    case: Case
    weights: int
    probe_seconds: float
    coefficients: Mapping[str, Any]
    lines: Sequence[Line]

    @property
    def judged_whole(self) -> bool:
        return self.weights > JUDGED_BYTES

    def good_whole(self, line: Line) -> bool:
        return not self.judged_whole or WHOLE_UNDER <= line.whole_ratio <= WHOLE_OVER


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Everything that one run found."""

    created: datetime
    machine: Mapping[str, str | int]
    plan: MemoryPlan
    results: Sequence[CaseResult]


def write(report: MemoryReport, path: Path) -> None:
    """The schema of memory.json."""
    content = {
        "schema": _SCHEMA,
        "created": report.created.isoformat(),
        "machine": dict(report.machine),
        "flat_reserve": FLAT_RESERVE,
        "models": [asdict(result) for result in report.results],
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tables(report: MemoryReport) -> Group:
    shown = [table.of_rows(result.case.name, _HEADER, _rows(result)) for result in report.results]
    caption = f"transient within {UNDER}..{OVER}, the whole within {WHOLE_UNDER}..{WHOLE_OVER}"
    return Group(
        *shown, table.of_rows(f"ratios to measured: {caption}", _SUMMARY, _summary(report))
    )


def markdown(report: MemoryReport) -> str:
    """The same tables, for the docs."""
    lines = ["### Summary", "", *_pipes(_SUMMARY, _summary(report)), ""]
    for result in report.results:
        lines += [f"### {result.case.name}", "", *_pipes(_HEADER, _rows(result)), ""]
    return "\n".join(lines)


def _rows(result: CaseResult) -> Iterator[tuple[str, ...]]:
    for line in result.lines:
        yield (
            in_words(line.forward),
            _megabytes(line.measured),
            _megabytes(line.estimate),
            f"{line.ratio:.2f}",
            f"{line.guess / line.measured:.2f}",
            f"{FLAT_RESERVE / line.measured:.0f}",
            f"{line.bound / line.measured:.1f}",
            f"{line.whole_ratio:.3f}",
            " ".join(_verdicts(result, line)),
        )


def _verdicts(result: CaseResult, line: Line) -> Iterator[str]:
    if not line.good:
        yield "UNDER" if line.ratio < UNDER else "OVER"
    if not result.good_whole(line):
        yield "WHOLE"


def _summary(report: MemoryReport) -> Iterator[tuple[str, ...]]:
    for result in report.results:
        ratios = [line.ratio for line in result.lines]
        failed = [line for line in result.lines if list(_verdicts(result, line))]
        yield (
            result.case.name,
            _megabytes(result.weights),
            f"{result.probe_seconds:.1f} s",
            f"{min(ratios):.2f}",
            f"{max(ratios):.2f}",
            _span([line.whole_ratio for line in result.lines], 3),
            _span([line.guess / line.measured for line in result.lines], 2),
            _span([FLAT_RESERVE / line.measured for line in result.lines], 0),
            f"{len(failed)} of {len(ratios)} missed" if failed else "met",
        )


def _span(ratios: Sequence[float], digits: int) -> str:
    return f"{min(ratios):.{digits}f}..{max(ratios):.{digits}f}"


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB" if nbytes < 10**8 else f"{nbytes / 1e6:.0f} MB"


def _pipes(header: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(cells)} |"
