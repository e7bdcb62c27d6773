"""When the tokens of answers came, and how fast. Pure; times are seconds on one clock.

A server sends events: one may carry the text of several tokens, or none when a character is not
complete yet, so an event counts as `tokens / len(times)` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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


def decode_rate(streams: Sequence[Stream]) -> float | None:
    """Tokens per second while every stream decodes. None when there was no such time.

    start   the last stream has its first token
    end     the first stream has its last token
    """
    start = max(stream.first for stream in streams)
    end = min(stream.last for stream in streams)
    tokens = sum(stream.tokens_between(start, end) for stream in streams)
    return tokens / (end - start) if end > start and tokens else None
