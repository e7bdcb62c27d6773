"""The result as tables for the terminal."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from scripts.benchmarks.metrics import SYSTEMS, Better, Metric, Requirement
from scripts.benchmarks.report import Report

ARROWS = {Better.HIGHER: "↑", Better.LOWER: "↓"}
NOTHING = "–"
VERDICTS = {True: ("met", "green"), False: ("missed", "red"), None: ("not measured", "dim")}

# Of a value and the ratio beside it: "10,000  1.02", "0.00768 5.36".
_CELL_WIDTH = 12
_VALUE_WIDTH = 6


def tables(report: Report) -> Group:
    title = "What is required of our server"
    return Group(_metrics(report), requirements(report.requirements, title))


def _metrics(report: Report) -> Table:
    rounds = report.plan.repeats
    caption = "↑ more is better, ↓ less is better; bold: ours divided by theirs"
    if rounds > 1:
        caption += f", within a round; medians of {rounds} rounds"
    table = Table(title=f"{report.model}, greedy", caption=caption)
    # So that five systems fit into 120 columns.
    table.box, table.padding = SIMPLE_HEAD, (0, 1, 0, 0)
    table.add_column("")
    table.add_column("unit", no_wrap=True)
    table.add_column(SYSTEMS["ours"], justify="right")
    for system in report.baselines:
        title = SYSTEMS[system]
        width = max(_CELL_WIDTH, *map(len, title.split()))
        table.add_column(Text(title, justify="right"), max_width=width)
    for metric in report.metrics:
        table.add_row(*_row(metric, report))
    return table


def _row(metric: Metric, report: Report) -> list[str | Text]:
    spec = metric.spec
    others = (_compared(metric, baseline) for baseline in report.baselines)
    unit = f"{spec.unit} {ARROWS[spec.better]}"
    return [spec.title, unit, number(metric.median("ours")), *others]


def _compared(metric: Metric, baseline: str) -> Text:
    """Its value, and beside it the ratio; a dash for what it was not measured in, or can't do."""
    value, ratio = metric.median(baseline), _ratio(metric.ratio("ours", baseline))
    shown = NOTHING if value is None else number(value)
    shown = f"{shown:>{_VALUE_WIDTH}} "
    return Text.assemble(shown, (ratio.rjust(_CELL_WIDTH - len(shown)), "bold"))


def of_rows(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], caption: str | None = None
) -> Table:
    """A table whose columns but the first are numbers."""
    table = Table(title=title, caption=caption)
    for number, name in enumerate(header):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


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
