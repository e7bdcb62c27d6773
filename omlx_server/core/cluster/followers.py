"""The other ranks as rank 0 sees them. Lives on the mlx thread, but for `receive`."""

import logging
from collections.abc import Callable, Sequence
from itertools import count
from queue import SimpleQueue

from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import PASSING, Recalled, Record
from omlx_server.core.cluster.commands import Command, PayloadRead, ReadPayload
from omlx_server.core.crash import Crash
from omlx_server.core.ranks import NOT_ON_EVERY_RANK

_log = logging.getLogger(__name__)


class _SharedRead:
    """A read by all ranks, of which `ranks_left` have not ended it."""

    def __init__(self, ranks_left: int) -> None:
        self.ranks_left = ranks_left
        self.own: Recalled | None = None
        self.reasons = set[str]()  # why others have no part


class Followers:
    """Commands to the `size` other ranks, sent with `tell`, and their answers."""

    def __init__(self, tell: Callable[[Command], None], size: int) -> None:
        self.tell = tell
        self._size = size
        self._numbers = count()
        self._newest: dict[BlockKey, int] = {}
        self._readings: dict[int, _SharedRead] = {}
        self._answers: SimpleQueue[PayloadRead] = SimpleQueue()
        self.wake: Callable[[], None] = lambda: None
        self.step_failed: Callable[[str], str] = lambda problem: problem
        """Takes the problem of a failed step; returns why the group is lost."""

    def receive(self, answer: PayloadRead) -> None:
        """Take an answer of a rank. Any thread."""
        self._answers.put(answer)
        self.wake()

    def fail(self, crash: Crash) -> str:
        reason = f"the ranks of the cluster are out of step ({crash.summary})"
        problem = self.step_failed(reason)
        if problem == reason:
            _log.error("a step of several ranks failed", exc_info=crash.error)
        return problem

    def read(self, record: Record, patience: float) -> None:
        number = next(self._numbers)
        self._newest[record.key] = number
        self._readings[number] = _SharedRead(1 + self._size)
        self.tell(ReadPayload(number, record, patience))

    def note_own_read(self, recalled: Recalled) -> None:
        number = self._newest.pop(recalled.record.key, None)
        if number is not None:
            reading = self._readings[number]
            reading.own = recalled
            reading.ranks_left -= 1

    def take_complete(self) -> Sequence[tuple[int, Recalled]]:
        """Return reads that all ranks have newly ended; a missing part makes a miss."""
        while not self._answers.empty():
            answer = self._answers.get_nowait()
            reading = self._readings.get(answer.number)
            if reading is not None:
                reading.reasons |= {answer.reason} - {""}
                reading.ranks_left -= 1
        complete = list[tuple[int, Recalled]]()
        for number, reading in list(self._readings.items()):
            if not reading.ranks_left and reading.own is not None:
                del self._readings[number]
                complete.append((number, _result_of_all(reading.own, reading.reasons)))
        return complete


def _result_of_all(recalled: Recalled, reasons: set[str]) -> Recalled:
    if recalled.packed is None or not reasons:
        return recalled
    lasting = reasons.difference(PASSING)
    return Recalled(recalled.record, reason=NOT_ON_EVERY_RANK if lasting else min(reasons))
