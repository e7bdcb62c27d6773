"""Reads of the cold tier that are under way, and questions to it: who waits, until when, and what
has come for whom. Owned by the mlx thread.

Who waits goes on without what is late; nobody else waits for something that hangs. A block is
leased in the index from the order to read it until that has ended, whoever still waits for it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Packed, Record
from omlx_server.core.cold.index import ColdIndex, ColdStats
from omlx_server.store.worker import Contains, Done, Read, Worker

_PROMOTED_BYTES = 64 << 20  # at most so much becomes arrays between two steps
_HANG_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Recalled:
    """The end of a read: what came, or the reason why nothing did."""

    record: Record
    packed: Packed | None
    reason: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """What was asked is in the index, as far as it is there."""

    question: int


class _Wait(NamedTuple):
    """Since when and until when somebody waits."""

    begun: float
    end: float


class Reads:
    """`hangs` from a wait in vain until the worker gives a sign of life."""

    def __init__(
        self, index: ColdIndex, stats: ColdStats, worker: Worker, clock: Callable[[], float]
    ) -> None:
        self._index = index
        self._stats = stats
        self._worker = worker
        self._clock = clock
        self._reading: dict[BlockKey, tuple[Record, _Wait]] = {}
        self._asking: dict[tuple[str, int], _Wait] = {}
        self._under_way: set[BlockKey] = set()
        self._arrived: dict[str, deque[Recalled | Answered]] = {}
        self.hangs = False

    def ask(self, namespace: str, question: int, records: tuple[Record, ...], wait: float) -> None:
        self._asking[namespace, question] = self._wait(wait)
        if self.hangs:
            self._end_question(namespace, question)
        else:
            self._worker.submit(Contains(question, records))

    def read(self, record: Record, patience: float) -> None:
        key = record.key
        if key not in self._index:
            self.arrive(Recalled(record, None, "gone", 0, 0.0))
        elif self.hangs:  # somebody has waited in vain already
            self.fail("timeout")
            self.arrive(Recalled(record, None, "timeout", 0, 0.0))
        elif key not in self._reading:
            self._reading[key] = record, self._wait(patience)
            if key not in self._under_way:  # else somebody asked who did not wait to the end
                self._under_way.add(key)
                self._index.lease(key)
                self._worker.submit(Read(record))

    def answered(self, asked: Contains, done: Done) -> None:
        if done.reason:
            self.fail(done.reason)
        for record in done.records:
            self._index.discover(record)
        self._end_question(asked.records[0].namespace, asked.id)

    def ended(self, record: Record, done: Done) -> None:
        self._under_way.discard(record.key)
        self._index.release(record.key)
        if done.reason:
            self.fail(done.reason)
        else:
            self._was_read(done)
        if self._reading.pop(record.key, None) is not None:
            read = done.record or record
            self.arrive(Recalled(read, done.packed, done.reason, done.nbytes, done.seconds))

    def arrive(self, event: Recalled) -> None:
        self._arrived.setdefault(event.record.namespace, deque()).append(event)

    def take(self, namespace: str) -> Iterator[Recalled | Answered]:
        """What has come for a namespace; the rest is left for the next call."""
        arrived, room = self._arrived.get(namespace, deque()), _PROMOTED_BYTES
        while arrived and room > 0:
            event = arrived.popleft()
            room -= event.nbytes if isinstance(event, Recalled) else 0
            yield event

    def give_up_the_late(self) -> None:
        now = self._clock()
        for record, wait in [late for late in self._reading.values() if late[1].end < now]:
            del self._reading[record.key]
            self._late(wait, now)
            self.arrive(Recalled(record, None, "timeout", 0, 0.0))
        for question, wait in [late for late in self._asking.items() if late[1].end < now]:
            self._late(wait, now)
            self._end_question(*question)

    def fail(self, reason: str) -> None:
        self._stats.failed[reason] = self._stats.failed.get(reason, 0) + 1

    def has_come(self, namespace: str) -> bool:
        """Whether there is something to take."""
        return bool(self._arrived.get(namespace))

    @property
    def under_way(self) -> bool:
        """Whether the thread has blocks to read, for whomever."""
        return bool(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether somebody waits, or has not taken what came."""
        return bool(self._reading or self._asking or any(self._arrived.values()))

    # -- inside --------------------------------------------------------------------------

    def _was_read(self, done: Done) -> None:
        assert done.record is not None
        self._index.learn(done.record)
        self._index.resize(done.record.key, done.nbytes)
        self._index.touch(done.record.key)
        self._stats.read += 1
        self._stats.read_bytes += done.nbytes

    def _end_question(self, namespace: str, question: int) -> None:
        if self._asking.pop((namespace, question), None) is not None:
            self._arrived.setdefault(namespace, deque()).append(Answered(question))

    def _wait(self, seconds: float) -> _Wait:
        now = self._clock()
        return _Wait(now, now + seconds)

    def _late(self, wait: _Wait, now: float) -> None:
        self.fail("timeout")
        self.hangs = self.hangs or now - wait.begun >= _HANG_SECONDS
