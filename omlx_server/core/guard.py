"""The one broad except outside the HTTP edge: work whose failure must not take others along."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Crash:
    """What guarded work raised."""

    error: Exception

    @property
    def summary(self) -> str:
        """Kind of the error only: its text may hold something of a prompt."""
        return type(self.error).__name__

    @property
    def text(self) -> str:
        """Kind of the error and the first line of what it says. Not for work on prompts."""
        line = next(iter(str(self.error).splitlines()), "")
        return f"{self.summary}: {line}" if line else self.summary


def guarded(work: Callable[[], T]) -> T | Crash:
    """Run `work`; an exception comes back as a value that the caller has to look at."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - the purpose of this function
        return Crash(error)


async def guarded_async(work: Awaitable[T]) -> T | Crash:
    """Wait for `work`; an exception comes back as a value. A cancellation passes."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - as above
        return Crash(error)
