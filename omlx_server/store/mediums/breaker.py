"""Deadlines and a circuit breaker for a medium that may hang. Owned by the I/O thread."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Generic, TypeVar

from omlx_server.store.mediums.medium import Buffer, Medium, MediumError, Name

T = TypeVar("T")

FAILURES_TO_OPEN = 5
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0
REASONS = ("full", "read-only", "io", "timeout", "unreachable", "too-large")
# Reasons that count as failures; the others are answers of a medium that works.
BREAKING = frozenset({"io", "timeout", "unreachable"})


@dataclass(slots=True, eq=False)
class GuardedMedium:
    """After FAILURES_TO_OPEN failures in a row calls raise MediumError at once, for a pause.
    Then one call is a trial: it ends that, or doubles the pause."""

    medium: Medium
    deadline_seconds: float
    clock: Callable[[], float] = time.monotonic
    # All reasons from the start, so that its size never changes under a reader.
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0), init=False)
    _stuck: Thread | None = field(default=None, init=False)
    _failures_in_row: int = field(default=0, init=False)
    _pause: float = field(default=FIRST_PAUSE, init=False)
    _open_until: float = field(default=-math.inf, init=False)

    @property
    def is_open(self) -> bool:
        return self.clock() < self._open_until

    def get(self, name: Name) -> bytes | None:
        return self._run(lambda: self.medium.get(name))

    def put(self, name: Name, parts: Sequence[Buffer]) -> None:
        self._run(lambda: self.medium.put(name, parts))

    def contains_many(self, names: Iterable[Name]) -> set[Name]:
        listed = list(names)  # here, since the other thread may go on after its deadline
        return self._run(lambda: self.medium.contains_many(listed))

    def delete(self, name: Name) -> None:
        self._run(lambda: self.medium.delete(name))

    def close(self) -> None:
        """Close the medium even if the circuit is open."""
        thread = _CallThread(self.medium.close)
        thread.start()
        thread.join(self.deadline_seconds)

    def _run(self, work: Callable[[], T]) -> T:
        if self.is_open:
            raise MediumError("unreachable", "the cold store failed repeatedly and is left alone")
        try:
            result = self._run_within_deadline(work)
        except MediumError as error:
            self._note_failure(error.reason)
            raise
        self._reset()
        return result

    def _run_within_deadline(self, work: Callable[[], T]) -> T:
        if self._stuck is not None and self._stuck.is_alive():
            raise MediumError("timeout", "an earlier call to the cold store still hangs")
        thread = _CallThread(work)
        thread.start()
        thread.join(self.deadline_seconds)
        if thread.is_alive():
            self._stuck = thread
            raise MediumError("timeout", f"no answer within {self.deadline_seconds:g} s")
        return thread.result()

    def _note_failure(self, reason: str) -> None:
        self.failures[reason] += 1
        if reason not in BREAKING:
            self._reset()
            return
        self._failures_in_row += 1
        if self._failures_in_row >= FAILURES_TO_OPEN:
            self._open_until = self.clock() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _reset(self) -> None:
        self._failures_in_row = 0
        self._pause = FIRST_PAUSE


class _CallThread(Thread, Generic[T]):
    """A call on a daemon thread, so that a hanging one can't hold up the exit."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(name="cold-store-call", daemon=True)
        self._work = work
        self._results: list[T] = []
        # For an exception that the medium should not raise; the thread's traceback shows it.
        self._error = MediumError("io", "the cold store failed in an unexpected way")

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except MediumError as error:
            self._error = error

    def result(self) -> T:
        if not self._results:
            raise self._error
        return self._results[0]
