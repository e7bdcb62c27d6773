"""The only broad `except` outside the HTTP edge: for work whose failure must not stop others."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from omlx_server.errors import OmlxError, one_line

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Crash:
    """The exception that guarded work raised, as a value."""

    error: Exception

    @property
    def summary(self) -> str:
        """The error's class name only, because its message may hold something of a prompt."""
        return type(self.error).__name__

    @property
    def reason(self) -> str:
        """The error's message in one line; its class name comes before it unless the error is
        foreseen. Not for work on prompts, of which the message may hold something."""
        line = one_line(self.error)
        return line if self.is_foreseen or line == self.summary else f"{self.summary}: {line}"

    @property
    def is_foreseen(self) -> bool:
        """Whether the error's message says enough, so that no traceback is of use."""
        return isinstance(self.error, (OmlxError, OSError, ValueError))


def guarded(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | Crash:
    """Run `work` and return its result; an exception is returned as a Crash, for the caller to
    look at."""
    try:
        return work(*args, **options)
    except Exception as error:  # noqa: BLE001 - the purpose of this function
        return Crash(error)


async def guarded_async(work: Awaitable[T]) -> T | Crash:
    """As `guarded`, for `work` that is awaited. A cancellation is raised, not returned."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - as above
        return Crash(error)
