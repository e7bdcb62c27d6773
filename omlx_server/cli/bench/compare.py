"""A figure beside the same one of an earlier run. Pure."""

from dataclasses import dataclass
from typing import Any

from omlx_server.cli.bench.result import Figure, Result


@dataclass(frozen=True, slots=True)
class Gain:
    """`ratio` is above one where it got better, whatever better means for the figure. It is clear
    when no value of one run lies among those of the other."""

    ratio: float
    is_clear: bool


def better_by(now: Figure, before: Figure) -> Gain:
    new, old = now.median, before.median
    better, worse = (new, old) if now.group.more_is_better else (old, new)
    apart = min(now.values) > max(before.values) or max(now.values) < min(before.values)
    return Gain(better / worse if worse else 0.0, apart)


def ratios(result: Result, before: Result) -> dict[str, Any]:
    """By the name of each figure that both have."""
    pairs = ((figure, before.find(figure.name)) for figure in result.figures)
    gains = {new.name: better_by(new, old) for new, old in pairs if old is not None}
    return {
        "url": before.url,
        "model": before.model,
        "server": before.server,
        "created": before.created,
        "better_by": {
            name: {"ratio": round(gain.ratio, 4), "clear": gain.is_clear}
            for name, gain in gains.items()
        },
    }
