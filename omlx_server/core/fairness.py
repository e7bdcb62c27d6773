"""Who was served how much lately, so that a key with many requests does not keep others waiting.

Counted in seconds of the machine, which decay: somebody who was quiet for a while has no credit
without end, and who was busy is not punished for long. Pure.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

_HALF_LIFE_SECONDS = 30.0
_NOTHING = 1e-6
# Who comes to a busy machine goes first for so many seconds at most, however little he had.
MOST_CREDIT = 5.0


@dataclass(slots=True)
class _Used:
    seconds: float
    at: float


class Fairness:
    """Seconds that each owner (an API key; all alike where there are none) was given."""

    def __init__(self) -> None:
        self._used: dict[bytes, _Used] = {}

    def give(self, owners: Collection[bytes], seconds: float, now: float) -> None:
        """So many seconds went to these sequences alike; an owner may be named several times."""
        if not owners or seconds <= 0:
            return
        for owner in owners:
            used = self.used(owner, now) + seconds / len(owners)
            self._used[owner] = _Used(used, now)
        if len(self._used) > 2 * len(owners) + 64:
            self._forget(now)

    def compete(self, owners: Collection[bytes], now: float) -> None:
        """These want the machine at once: none of them was served much less than another one."""
        if len(owners) < 2:
            return
        least = max(self.used(owner, now) for owner in owners) - MOST_CREDIT
        for owner in owners:
            if self.used(owner, now) < least:
                self._used[owner] = _Used(least, now)

    def used(self, owner: bytes, now: float) -> float:
        """Seconds of late, each worth half as much half a minute later."""
        known = self._used.get(owner)
        if known is None:
            return 0.0
        return known.seconds * math.exp2(-max(0.0, now - known.at) / _HALF_LIFE_SECONDS)

    def _forget(self, now: float) -> None:
        used = {owner: self.used(owner, now) for owner in self._used}
        self._used = {o: _Used(seconds, now) for o, seconds in used.items() if seconds > _NOTHING}
