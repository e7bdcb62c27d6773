"""How often something may crash before it is given up. Pure."""

from collections import deque

MOST = 3
_WINDOW_SECONDS = 60.0


class Crashes:
    """Those of a while."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST)

    def are_too_many(self, now: float) -> bool:
        """Count one more. Whether it was one too many within a minute."""
        self._times.append(now)
        return len(self._times) == MOST and now - self._times[0] < _WINDOW_SECONDS
