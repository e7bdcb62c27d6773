"""The result as a picture: one panel per kind of quantity, one colour per system."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from scripts.benchmarks.metrics import SYSTEMS, Metric
from scripts.benchmarks.report import Report
from scripts.benchmarks.table import number

# Told apart by people with any colour vision (Okabe and Ito).
_COLOURS = {
    "ours": "#0072B2",
    "bare": "#999999",
    "mlx_lm": "#E69F00",
    "vllm_mlx": "#009E73",
    "llama_cpp": "#CC79A7",
}
# Title of the panel, and how the names of its metrics begin.
_PANELS: tuple[tuple[str, str | tuple[str, ...]], ...] = (
    ("Output, prefill included (tok/s)", "total_"),
    ("Decode alone (tok/s)", "decode_"),
    ("Time to first token (ms)", "ttft"),
    ("Gaps while a long prompt is read (ms)", "gap_"),
    ("Per token of a one-layer model (µs)", "host_"),
    ("First token with a cache (ms)", ("repeat_cold", "repeat_warm", "partial_ttft")),
    ("Turns, and requests at once (s)", ("turns_ttft", "together_wall", "together_ttft")),
    ("Peak resident memory (MB)", "peak_rss"),
)
# Ratios have no place beside times and rates.
_LEFT_OUT = ("decode_gain", "gap_chunks")
_COLUMNS = 3
_MANY_BARS = 8


def save(report: Report, path: Path) -> None:
    """Write a PNG."""
    panels = [(title, _metrics(report, prefix)) for title, prefix in _PANELS]
    panels = [(title, metrics) for title, metrics in panels if metrics]
    rows = max(1, -(-len(panels) // _COLUMNS))
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(5 * _COLUMNS, 3.2 * rows), layout="constrained")
        for place, (title, metrics) in enumerate(panels, start=1):
            _bars(figure.add_subplot(rows, _COLUMNS, place), title, metrics, report.systems)
        for axes in figure.axes[:1]:  # none where all that was measured has no panel
            handles, labels = axes.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        figure.suptitle(f"{report.model} on {report.machine['device']}, median of the rounds")
        figure.savefig(path, dpi=150)


def _metrics(report: Report, prefix: str | tuple[str, ...]) -> list[Metric]:
    return [
        metric
        for metric in report.metrics
        if metric.spec.name.startswith(prefix) and metric.spec.name not in _LEFT_OUT
    ]


def _bars(axes: Any, title: str, metrics: Sequence[Metric], systems: Sequence[str]) -> None:
    width = 0.8 / len(systems)
    # Many narrow bars: their numbers stand upright.
    style = {"rotation": 90, "padding": 2} if len(systems) * len(metrics) > _MANY_BARS else {}
    for offset, system in enumerate(systems):
        places = [i + (offset - (len(systems) - 1) / 2) * width for i in range(len(metrics))]
        values = [metric.median(system) or 0.0 for metric in metrics]
        bars = axes.bar(places, values, width, label=SYSTEMS[system], color=_COLOURS[system])
        labels = [number(value) if value else "" for value in values]
        axes.bar_label(bars, labels, fontsize=7, **style)
    names = [metric.spec.title.partition(", ")[2] or metric.spec.title for metric in metrics]
    axes.set_xticks(range(len(metrics)), names)
    axes.margins(y=0.2)
    axes.set_title(title)
