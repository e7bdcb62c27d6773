"""A ratio that corrects estimates by what steps really took. It rises at once and falls by half in
a minute whether or not anything runs, so a freak measurement can't shut the door for ever."""

import math
from dataclasses import dataclass

HALF_LIFE_SECONDS = 60.0
HIGHEST = 4.0


@dataclass(slots=True)
class Correction:
    """Always from 1 to `HIGHEST`. Times are seconds of one clock; it never runs backwards."""

    _excess: float = 0.0
    _at: float = 0.0

    def ratio(self, now: float) -> float:
        """By what estimates are to be multiplied."""
        return 1.0 + self._excess * math.exp2(-max(0.0, now - self._at) / HALF_LIFE_SECONDS)

    def observe(self, estimated: int, measured: int, now: float) -> None:
        """A step for which `estimated` bytes, uncorrected, were planned took so many."""
        wanted = min(measured / estimated, HIGHEST) if estimated > 0 else 1.0
        self._excess = max(self.ratio(now) - 1.0, wanted - 1.0)
        self._at = max(now, self._at)
