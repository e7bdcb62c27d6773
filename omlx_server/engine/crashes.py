"""How often a loop may crash before it is given up: three times within a minute. Pure."""

from collections import deque

MOST = 3
_WINDOW_SECONDS = 60.0


class Crashes:
    """Remembers the times of the latest crashes of one loop."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST)

    def are_too_many(self, now: float) -> bool:
        """Note a crash at `now` (seconds). True when it is the third within a minute."""
        self._times.append(now)
        return len(self._times) == MOST and now - self._times[0] < _WINDOW_SECONDS
