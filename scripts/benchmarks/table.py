"""The result as tables for the terminal."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from scripts.benchmarks.metrics import SYSTEMS, Better, Metric, Requirement
from scripts.benchmarks.report import Report

ARROWS = {Better.HIGHER: "↑", Better.LOWER: "↓"}
VERDICTS = {True: ("met", "green"), False: ("missed", "red"), None: ("not measured", "dim")}


def tables(report: Report) -> Group:
    title = "What is required of our server"
    return Group(_metrics(report), requirements(report.requirements, title))


def _metrics(report: Report) -> Table:
    rounds = report.plan.repeats
    caption = "↑ more is better, ↓ less is better"
    if rounds > 1:
        caption += f"; medians of {rounds} rounds, ratios taken within a round"
    table = Table(title=f"{report.model}, greedy", caption=caption)
    table.add_column("")
    table.add_column("unit")
    for system in report.systems:
        table.add_column(SYSTEMS[system], justify="right")
    for baseline in report.baselines:
        table.add_column(f"ours / {baseline}", justify="right", style="bold")
    for metric in report.metrics:
        table.add_row(*_row(metric, report))
    return table


def _row(metric: Metric, report: Report) -> list[str]:
    spec = metric.spec
    medians = [number(metric.median(system)) for system in report.systems]
    ratios = [metric.ratio("ours", baseline) for baseline in report.baselines]
    unit = f"{spec.unit} {ARROWS[spec.better]}"
    return [spec.title, unit, *medians, *(_ratio(ratio) for ratio in ratios)]


def requirements(required: Sequence[Requirement], title: str) -> Table:
    table = Table(title=title)
    table.add_column("")
    table.add_column("bound", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    for requirement in required:
        word, style = VERDICTS[requirement.met]
        table.add_row(*in_words(requirement), Text(word, style))
    return table


def in_words(requirement: Requirement) -> tuple[str, str, str]:
    """Its title, its bound and what was measured."""
    sign = "≥" if requirement.better is Better.HIGHER else "≤"
    return requirement.title, f"{sign} {requirement.bound:.3g}", _ratio(requirement.value)


def number(value: float | None) -> str:
    """Three digits that matter; nothing for what was not measured."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
