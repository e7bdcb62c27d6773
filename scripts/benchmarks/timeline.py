"""When the tokens of a run came, and what follows from it. Pure; times are seconds.

The clock of a run starts just before its first request is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from omlx_server.cli.bench.target import Stream


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one workload on one system. `cpu_seconds` are of the system's process;
    `cut_short`: an answer had fewer tokens than were asked for, so its rates compare with none."""

    streams: tuple[Stream, ...]
    late: Stream | None = None
    cpu_seconds: float = 0.0
    cut_short: bool = False

    @property
    def tokens(self) -> int:
        return sum(stream.tokens for stream in self.streams)


def total_rate(run: Run) -> float:
    """Output tokens per second from the first request sent to the last token, prefill included."""
    start = min(stream.sent for stream in run.streams)
    return run.tokens / (max(stream.last for stream in run.streams) - start)


def median_ttft(run: Run) -> float:
    return median(stream.ttft for stream in run.streams)


def gaps(run: Run) -> list[float]:
    """Waits between two tokens of the running streams, while the late prompt was being read."""
    if run.late is None:
        raise ValueError("this run had no late prompt")
    return [
        after - before
        for stream in run.streams
        for before, after in pairwise(stream.times)
        if after > run.late.sent and before < run.late.first
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest values."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
