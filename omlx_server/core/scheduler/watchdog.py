"""Detects requests that wait although nothing can end their wait. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

PATIENCE_SECONDS = 10.0
# A longer read of the cold tier has been lost.
LONGEST_READ_SECONDS = 120.0
# Seconds between two looks, at most: a machine may sleep, or another model take a long step.
_MOST_SECONDS_APART = 2.0
# Restarts in a row without a token or an end for a client.
_MOST_RESTARTS = 3


class Excuse(Enum):
    """The work that may still end a standstill. OTHERS: other models or jobs hold the memory."""

    NONE = "none"
    READS = "reads"
    OTHERS = "others"


class StallVerdict(Enum):
    WAIT = "wait"
    START_OVER = "start over"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Stalls:
    """Standstills met by a restart, and by ending the requests."""

    restarted: int = 0
    ended: int = 0

    def __add__(self, other: "Stalls") -> "Stalls":
        return Stalls(self.restarted + other.restarted, self.ended + other.ended)


class Watchdog:
    """Counts `stalled_seconds` of a standstill. Each restart doubles the patience."""

    def __init__(self) -> None:
        self.stalled_seconds = 0.0
        self._last_look: float | None = None
        self._restarts = 0
        self._moved_since_restart = True

    def note_progress(self) -> None:
        """Note that a request moved."""
        self._last_look, self._moved_since_restart = None, True

    def note_pause(self) -> None:
        """Note that work elsewhere may end the standstill."""
        self._last_look = None

    def note_rest(self) -> None:
        """Note that nothing waits."""
        self._last_look, self._moved_since_restart, self._restarts = None, True, 0

    def note_answer(self) -> None:
        """Note that a client got a token or an end."""
        self._restarts = 0

    def look(self, now: float, excuse: Callable[[], Excuse]) -> StallVerdict:
        """Return what to do about waiting requests. It asks `excuse` only when patience ends."""
        before, self._last_look = self._last_look, now
        if before is None:
            self.stalled_seconds = 0.0
        else:
            self.stalled_seconds += min(max(0.0, now - before), _MOST_SECONDS_APART)
        if self.stalled_seconds < PATIENCE_SECONDS * 2**self._restarts:
            return StallVerdict.WAIT
        why = excuse()
        if why is Excuse.OTHERS:
            self.note_pause()
            return StallVerdict.WAIT
        if why is Excuse.READS and self.stalled_seconds < LONGEST_READ_SECONDS:
            return StallVerdict.WAIT
        # A restart after which nothing moved won't help another time.
        may_help = self._moved_since_restart and self._restarts < _MOST_RESTARTS
        starts_over = self._restarts == 0 or may_help
        self._restarts = self._restarts + 1 if starts_over else 0
        self._last_look, self._moved_since_restart = None, False
        return StallVerdict.START_OVER if starts_over else StallVerdict.GIVE_UP
