"""The only broad `except` outside the HTTP edge."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from omlx_server.errors import OmlxError, one_line

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Crash:
    """The exception that guarded work raised."""

    error: Exception

    @property
    def summary(self) -> str:
        """The error's class only, because its message may quote a prompt."""
        return type(self.error).__name__

    @property
    def reason(self) -> str:
        """The error's message in one line, after its class unless foreseen. Not for work on
        prompts."""
        line = one_line(self.error)
        return line if self.is_foreseen or line == self.summary else f"{self.summary}: {line}"

    @property
    def is_foreseen(self) -> bool:
        """Whether the message says enough without a traceback."""
        return isinstance(self.error, (OmlxError, OSError, ValueError))


def guarded(work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | Crash:
    """Run `work` and return its result, or a Crash if it raised."""
    try:
        return work(*args, **options)
    except Exception as error:  # noqa: BLE001 - the purpose of this function
        return Crash(error)


async def guarded_async(work: Awaitable[T]) -> T | Crash:
    """Await `work` and return its result, or a Crash. Cancellation is raised."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - as above
        return Crash(error)
