"""The plan of a measurement, and how much of it fits into the time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Lengths are in tokens. The rounds after the warm-up may take `seconds`; the longest
    prompts and most streams give way."""

    seconds: float = 60.0
    repeats: int = 3
    lengths: tuple[int, ...] = (128, 512, 2048, 8192)
    first_share: float = 0.45
    streams: tuple[int, ...] = (1, 2, 4, 8)
    stream_tokens: int = 64
    out_tokens: int = 64
    least_out_tokens: int = 8
    decode_share: float = 0.35
    turns: int = 4
    turn_tokens: int = 256
    turn_out: int = 16


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A slice of time, in seconds on one clock."""

    start: float
    end: float

    def left(self, now: float) -> float:
        return max(0.0, self.end - now)

    def repeats(self, now: float, cost: float, most: int) -> int:
        """Return how often `cost` seconds fit in, up to `most`."""
        return most if cost <= 0 else min(most, int(self.left(now) / cost))


def slices(start: float, seconds: float, *shares: float) -> list[TimeSlice]:
    """Divide `seconds` from `start` on into one slice per share (0 to 1), and one for the rest."""
    ends = [start + seconds * sum(shares[: i + 1]) for i in range(len(shares))]
    ends.append(start + seconds)
    return [TimeSlice(begin, end) for begin, end in zip([start, *ends], ends, strict=False)]
