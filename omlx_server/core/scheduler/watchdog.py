"""Detects requests that wait although nothing can end their wait. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

PATIENCE_SECONDS = 10.0
# A longer read of the cold tier has been lost.
LONGEST_READ_SECONDS = 120.0
# Seconds between two looks, at most: a machine may sleep, or another model take a long step.
_MOST_APART = 2.0
# Restarts in a row without a token or an end for a client.
_MOST_STARTS = 3


class Excuse(Enum):
    """The work that may still end a standstill."""

    NONE = "none"
    READS = "reads"
    OTHERS = "others"
    """Other models or jobs at work hold the memory."""


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
    """Counts the seconds of a standstill, in `stood`. Each restart doubles the patience."""

    def __init__(self) -> None:
        self.stood = 0.0
        self._looked: float | None = None
        self._starts = 0
        self._moved_since = True

    def note_progress(self) -> None:
        self._looked, self._moved_since = None, True

    def note_pause(self) -> None:
        """Note that work elsewhere may end the standstill."""
        self._looked = None

    def note_rest(self) -> None:
        self._looked, self._moved_since, self._starts = None, True, 0

    def note_answer(self) -> None:
        self._starts = 0

    def look(self, now: float, excuse: Callable[[], Excuse]) -> StallVerdict:
        """Return what to do about requests that wait. `excuse` is called only when patience
        ends."""
        before, self._looked = self._looked, now
        apart = min(max(0.0, now - before), _MOST_APART) if before is not None else None
        self.stood = self.stood + apart if apart is not None else 0.0
        if self.stood < PATIENCE_SECONDS * 2**self._starts:
            return StallVerdict.WAIT
        why = excuse()
        if why is Excuse.OTHERS:
            self.note_pause()
            return StallVerdict.WAIT
        if why is Excuse.READS and self.stood < LONGEST_READ_SECONDS:
            return StallVerdict.WAIT
        return self._decide()

    def _decide(self) -> StallVerdict:
        helps = self._starts == 0 or (self._moved_since and self._starts < _MOST_STARTS)
        self._starts = self._starts + 1 if helps else 0
        self._looked, self._moved_since = None, False
        return StallVerdict.START_OVER if helps else StallVerdict.GIVE_UP
