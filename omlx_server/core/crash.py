"""The only broad `except` outside the HTTP edge."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from omlx_server.errors import OmlxError, one_line

P = ParamSpec("P")
T = TypeVar("T")

MOST_CRASHES = 3
_WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Crash:
    """The exception that guarded work raised."""

    error: Exception

    @property
    def summary(self) -> str:
        """The error's class only: its message may quote a prompt."""
        return type(self.error).__name__

    @property
    def reason(self) -> str:
        """The message in one line, after its class unless foreseen. Not for work on prompts."""
        line = one_line(self.error)
        return line if self.is_foreseen or line == self.summary else f"{self.summary}: {line}"

    @property
    def is_foreseen(self) -> bool:
        """Whether the message says enough without a traceback."""
        return isinstance(self.error, (OmlxError, OSError, ValueError))


class Crashes:
    """A loop's latest crashes. It is given up after three within a minute."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=MOST_CRASHES)

    def are_too_many(self, now: float) -> bool:
        """Note a crash at `now` (seconds); return whether it is one too many."""
        self._times.append(now)
        return len(self._times) == MOST_CRASHES and now - self._times[0] < _WINDOW_SECONDS


def guarded(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | Crash:
    """Return the result of `work`, or a Crash."""
    try:
        return work(*args, **options)
    except Exception as error:  # noqa: BLE001 - the purpose of this function
        return Crash(error)


async def guarded_async(work: Awaitable[T]) -> T | Crash:
    """Return the result of `work`, or a Crash. Cancellation is raised."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - as above
        return Crash(error)
