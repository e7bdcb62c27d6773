"""Draws a result and an earlier run with matplotlib, an extra."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from omlx_server.cli.bench.result import Figure, FigureGroup, Result

# Told apart by people with any colour vision (Okabe and Ito).
_NOW_COLOR, _BEFORE_COLOR = "#0072B2", "#999999"
_AXIS_LABELS = {
    FigureGroup.COLD: "tokens of the prompt",
    FigureGroup.WARM: "tokens of the prompt",
    FigureGroup.DECODE: "streams",
    FigureGroup.TURN: "turn",
}


def save(result: Result, before: Result | None, path: Path) -> None:
    groups = [group for group in FigureGroup if result.of(group)]
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        picture = Picture(figsize=(10, 7), layout="constrained")
        for position, group in enumerate(groups, start=1):
            _draw_panel(picture.add_subplot(2, 2, position), group, result, before)
        picture.suptitle(f"{result.model} at {result.url}, medians, smallest and largest")
        picture.savefig(path, dpi=150, format="png")


def _draw_panel(axes: Any, group: FigureGroup, result: Result, before: Result | None) -> None:
    figures = result.of(group)
    width = 0.4 if before else 0.7
    _draw_bars(axes, figures, -width / 2 if before else 0.0, width, _NOW_COLOR, "now")
    if before:
        old_figures = [before.find(figure.name) for figure in figures]
        _draw_bars(axes, old_figures, width / 2, width, _BEFORE_COLOR, "before")
        axes.legend(frameon=False)
    axes.set_xticks(range(len(figures)), [str(figure.at) for figure in figures])
    axes.set_xlabel(_AXIS_LABELS[group])
    axes.set_title(f"{group.title} ({group.unit})")


def _draw_bars(
    axes: Any, figures: Sequence[Figure | None], offset: float, width: float, color: str, label: str
) -> None:
    known = [(place, figure) for place, figure in enumerate(figures) if figure is not None]
    places = [place + offset for place, _ in known]
    heights = [figure.median for _, figure in known]
    below = [figure.median - min(figure.values) for _, figure in known]
    above = [max(figure.values) - figure.median for _, figure in known]
    style = {"color": color, "label": label, "ecolor": "#333333", "capsize": 3}
    axes.bar(places, heights, width, yerr=[below, above], **style)
