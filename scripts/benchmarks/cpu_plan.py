"""What `scripts/bench cpu` measures. Values only."""

from dataclasses import dataclass

OURS, OTHER = "this checkout", "the other"


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """Each number of `streams` is measured in so many rounds, with `out` tokens for each stream."""

    repeats: int = 5
    streams: tuple[int, ...] = (1, 8, 32)
    out: int = 1000


CPU_QUICK = CpuPlan(repeats=1, out=200)
