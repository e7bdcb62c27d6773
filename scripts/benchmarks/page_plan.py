"""What `scripts/bench page` measures. Values only."""

from dataclasses import dataclass

WITH, WITHOUT = "listening", "alone"


@dataclass(frozen=True, slots=True)
class PagePlan:
    """In each round each number of `listeners` has a window of `streams` streams with `out` tokens
    each, beside a window that has no listener."""

    repeats: int = 9
    streams: int = 8
    out: int = 160
    listeners: tuple[int, ...] = (1, 10)


PAGE_QUICK = PagePlan(repeats=3, out=64)
