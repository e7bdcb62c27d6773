"""The bytes a day that the cold tier may write, which spares the SSD. Pure."""

from dataclasses import dataclass
from enum import Enum

SAVED_BYTES = 64 << 20


class WriteCause(Enum):
    """Why a block is written, with the share of a day's bytes up to which it is."""

    SEEN_ONCE = 0.25  # evicted; few of these are ever asked for again
    SEEN_AGAIN = 0.875  # evicted from a prefix that came twice, or a conversation that went on
    KEPT = 1.0  # the server ends, or all are written when they are made


@dataclass(slots=True)
class DailyWrites:
    """Bytes written on the local `day` (as date.toordinal). `limit` 0: no limit."""

    limit: int = 0
    day: int = 0
    nbytes: int = 0
    is_told: bool = False  # whether the log says that the day's bytes are spent
    _unsaved: int = 0
    _resumed: int = 0  # of `nbytes`, by an earlier process

    def begin(self, day: int) -> None:
        """Note the date. One that went back gives no bytes, one that was wrong by years ends."""
        if day > self.day:
            self.day, self.nbytes, self._resumed, self.is_told = day, 0, 0, False
        elif day < self.day - 1:
            self.day = day

    def resume(self, day: int, nbytes: int) -> None:
        """Take over what an earlier process has written. A later call takes the place of this."""
        if day >= self.day:
            here = self.nbytes - (self._resumed if day == self.day else 0)
            self.day, self.nbytes, self._resumed = day, here + nbytes, nbytes

    def allows(self, nbytes: int, cause: WriteCause) -> bool:
        return not self.limit or self.nbytes + nbytes <= self.limit * cause.value

    def spend(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._unsaved += nbytes

    def take_save(self, *, ends: bool = False) -> bool:
        """Return whether to save it now: seldom, as that writes too."""
        least = min(SAVED_BYTES, self.limit // 16) if self.limit else SAVED_BYTES
        is_due = self._unsaved > (0 if ends else least)
        self._unsaved = 0 if is_due else self._unsaved
        return is_due
