"""When the tokens of a run came, and what follows from it. Pure; times are seconds.

The clock of a run starts just before its first request is sent. A server sends events: one may
carry the text of several tokens, or none when a character is not complete yet, so an event counts
as `tokens / len(times)` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer: when it was asked for, when each piece of text came, how many tokens it had."""

    sent: float
    times: tuple[float, ...]
    tokens: int

    def __post_init__(self) -> None:
        if not self.times or self.tokens < 1:
            raise ValueError("an answer without a token has no times to measure")

    @property
    def first(self) -> float:
        return self.times[0]

    @property
    def last(self) -> float:
        return self.times[-1]

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    def tokens_between(self, start: float, end: float) -> float:
        """Tokens that came after `start`, up to `end`."""
        events = sum(start < time <= end for time in self.times)
        return events * self.tokens / len(self.times)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one workload on one system. `cpu_seconds` are of the system's process."""

    streams: tuple[Stream, ...]
    late: Stream | None = None
    cpu_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(stream.tokens for stream in self.streams)


def total_rate(run: Run) -> float:
    """Output tokens per second from the first request sent to the last token, prefill included."""
    start = min(stream.sent for stream in run.streams)
    return run.tokens / (max(stream.last for stream in run.streams) - start)


def decode_rate(run: Run) -> float | None:
    """Tokens per second while every stream decodes. None when there was no such time.

    start   the last stream has its first token
    end     the first stream has its last token
    """
    start = max(stream.first for stream in run.streams)
    end = min(stream.last for stream in run.streams)
    tokens = sum(stream.tokens_between(start, end) for stream in run.streams)
    return tokens / (end - start) if end > start and tokens else None


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
