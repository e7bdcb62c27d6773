"""What `scripts/bench speculation` measures. Values only."""

from dataclasses import dataclass

# The two sides of each comparison.
WITH, WITHOUT = "drafts", "none"


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """A file of `lines` lines is edited. An answer has at most `out` tokens, a prompt and its
    answer together at most `longest` tokens. All is measured `repeats` times."""

    lines: int = 400
    out: int = 150
    repeats: int = 3
    longest: int = 8192


SPECULATION_QUICK = SpeculationPlan(lines=60, out=60, repeats=1)
