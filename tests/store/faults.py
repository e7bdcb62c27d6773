"""System calls on files that fail when a test says so."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from omlx_server.store.mediums.disk import FileOperations


class Kind(Enum):
    BEFORE = auto()  # it fails and does nothing
    AFTER = auto()  # it is done, but fails all the same
    SHORT = auto()  # a read or write of half the bytes; no error
    NOTHING = auto()  # a read or write of no bytes; no error
    CRASH = auto()  # it is done, and the process is no more


@dataclass(frozen=True)
class Fault:
    at: int  # the N-th operation
    kind: Kind
    errno: int = 0


class Crash(BaseException):
    """The process ends here; nothing can catch it."""


class Faulty(FileOperations):
    """Real operations, of which one goes wrong."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._open: set[int] = set()
        self._crashed = False
        self.count = 0
        self.hit = ""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name not in vars(FileOperations):
            return found

        def counted(*args: Any, **options: Any) -> Any:
            return self._do(name, found, args, options)

        return counted

    def _do(self, name: str, operation: Callable[..., Any], args: Any, options: Any) -> Any:
        if self._crashed:
            raise Crash
        self.count += 1
        if self.count != self._fault.at:
            return self._really(name, operation, args, options)
        self.hit = name
        match self._fault.kind:
            case Kind.SHORT | Kind.NOTHING if name in ("read", "write", "write_at"):
                share = 2 if self._fault.kind is Kind.SHORT else 1 << 40
                return self._partly(operation, args, share)
            case Kind.BEFORE:
                if name == "close":
                    self._really(name, operation, args, options)
                raise OSError(self._fault.errno, "planted")
            case Kind.AFTER:
                result = self._really(name, operation, args, options)
                if name.startswith("open"):
                    self._really("close", os.close, (result,), {})
                raise OSError(self._fault.errno, "planted")
            case Kind.CRASH:
                with suppress(OSError):
                    self._really(name, operation, args, options)
                self._crash()
        return self._really(name, operation, args, options)

    def _really(self, name: str, operation: Callable[..., Any], args: Any, options: Any) -> Any:
        result = operation(*args, **options)
        if name.startswith("open"):
            self._open.add(result)
        if name == "close":
            self._open.discard(args[0])
        return result

    def _partly(self, operation: Callable[..., Any], args: Any, share: int) -> Any:
        fd, what, *rest = args
        size = what if isinstance(what, int) else len(what)
        return operation(
            fd, size // share if isinstance(what, int) else what[: size // share], *rest
        )

    def _crash(self) -> None:
        """The system closes what a dead process had open."""
        self._crashed = True
        for fd in self._open:
            os.close(fd)
        raise Crash

    def leaked(self) -> set[int]:
        return self._open
