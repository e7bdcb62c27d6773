"""What `scripts/bench speculation` measures. Values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """A file of `lines` lines is edited; every answer has at most `out` tokens."""

    lines: int = 400
    out: int = 150
    repeats: int = 3


SPECULATION_QUICK = SpeculationPlan(lines=60, out=60, repeats=1)
