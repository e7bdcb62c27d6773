"""Says when something is due that is not done in each step or turn. Pure; times are seconds of one
clock."""

import math

REPORT_SECONDS = 0.05
"""So far apart are reports, and looks at the memory and at a long queue, while nobody comes or
goes."""


class Interval:
    """`seconds` have to pass from one time to the next. The first is due at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = -math.inf

    def has_passed(self, now: float) -> bool:
        """Whether it is due at `now`."""
        return now - self._last >= self._seconds

    def begin(self, now: float) -> None:
        """Note that it was done at `now`."""
        self._last = now
