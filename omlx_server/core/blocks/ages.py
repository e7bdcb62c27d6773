"""How many seconds ago a tick of a clock was that counts uses. Pure; time comes in as `now`."""

from bisect import bisect_left

_MOST = 1024


class Ages:
    """Remembers at which times the clock stood where: the nearer, the more exactly."""

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._times: list[float] = []

    def note(self, tick: int, now: float) -> None:
        """Note that the clock stands at `tick` at `now`. Of the older half of many notes every
        second one is forgotten."""
        if self._ticks and self._ticks[-1] >= tick:
            return
        self._ticks.append(tick)
        self._times.append(now)
        if len(self._ticks) > _MOST:
            half = _MOST // 2
            del self._ticks[0:half:2], self._times[0:half:2]

    def age(self, tick: int, now: float) -> float:
        """The seconds since `tick`, to within the time between two notes; 0 for one that has not
        been noted yet."""
        at = bisect_left(self._ticks, tick)
        return max(0.0, now - self._times[at]) if at < len(self._times) else 0.0
