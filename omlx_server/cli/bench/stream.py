"""When the tokens of answers came, and how fast. Times are seconds on one clock. Each event
counts as `tokens / len(times)`, since it may carry several tokens."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Piece = tuple[float, bytes]
"""The time at which bytes came, and the bytes."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer. `times` are of events with text. Raises ValueError for an answer without a
    token."""

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
        events = sum(start < time <= end for time in self.times)
        return events * self.tokens / len(self.times)


def decode_rate(streams: Sequence[Stream]) -> float | None:
    """Return the tokens per second of all streams together while every stream decodes; None if
    they never do."""
    start = max(stream.first for stream in streams)
    end = min(stream.last for stream in streams)
    tokens = sum(stream.tokens_between(start, end) for stream in streams)
    return tokens / (end - start) if end > start and tokens else None


def events(pieces: Iterable[Piece]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the time and JSON of each `data:` line but [DONE]. Raises ValueError for other
    lines."""
    line_start = b""
    for at, piece in pieces:
        *lines, line_start = (line_start + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield at, json.loads(data)
