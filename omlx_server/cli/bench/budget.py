"""How much of a measurement the time allows. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slice:
    """The time from `start` to `end`, on the clock that `now` is read from."""

    start: float
    end: float

    def left(self, now: float) -> float:
        return max(0.0, self.end - now)

    def repeats(self, now: float, cost: float, most: int) -> int:
        """How often something that takes `cost` seconds can be done, up to `most`."""
        return most if cost <= 0 else min(most, int(self.left(now) / cost))


def slices(start: float, seconds: float, *shares: float) -> list[Slice]:
    """One after the other; the last one has what remains."""
    ends = [start + seconds * sum(shares[: i + 1]) for i in range(len(shares))]
    ends.append(start + seconds)
    return [Slice(begin, end) for begin, end in zip([start, *ends], ends, strict=False)]
