"""A limit for crashes of a loop: three within a minute."""

from collections import deque

MOST = 3
_WINDOW_SECONDS = 60.0


class Crashes:
    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST)

    def are_too_many(self, now: float) -> bool:
        """Note a crash at `now` (seconds); return whether it is one too many."""
        self._times.append(now)
        return len(self._times) == MOST and now - self._times[0] < _WINDOW_SECONDS
