"""Converts ticks of the use clock into ages in seconds. Pure."""

from bisect import bisect_left

_MOST = 1024
# Two notes that are nearer to each other than this share of their age count as one: that leaves
# some 700 of ten years.
_GRAIN = 0.03


class Ages:
    """Remembers the time of past ticks, the recent ones more exactly."""

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._ticks)

    def note(self, tick: int, now: float) -> None:
        if self._ticks and self._ticks[-1] >= tick:
            return
        self._ticks.append(tick)
        self._times.append(now)
        if len(self) > _MOST:
            self._thin(now)

    def age(self, tick: int, now: float) -> float:
        """Return the seconds since `tick`; 0 for one that is not noted yet."""
        at = bisect_left(self._ticks, tick)
        return max(0.0, now - self._times[at]) if at < len(self) else 0.0

    def _thin(self, now: float) -> None:
        kept = list[int]()
        later = now
        for at in reversed(range(len(self))):
            if not kept or later - self._times[at] >= _GRAIN * (now - self._times[at]):
                kept.append(at)
                later = self._times[at]
        self._ticks = [self._ticks[at] for at in reversed(kept)]
        self._times = [self._times[at] for at in reversed(kept)]
