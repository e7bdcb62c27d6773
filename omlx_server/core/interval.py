"""Says when something periodic is due. Pure; times are seconds of one clock."""

import math

REPORT_SECONDS = 0.05
"""The time between reports, and between looks at memory, while nobody comes or goes."""


class Interval:
    """A period of `seconds`. It is due at once the first time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = -math.inf

    def has_passed(self, now: float) -> bool:
        return now - self._last >= self._seconds

    def begin(self, now: float) -> None:
        self._last = now
