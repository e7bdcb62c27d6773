"""Reads from the cold tier and questions to it. Owned by the mlx thread."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.blocks.record import Recalled, Record
from omlx_server.core.cold.index import ColdIndex, ColdReport
from omlx_server.store.worker import ContainsJob, Done, ReadJob, Worker

_PROMOTED_BYTES = 64 << 20  # the most that becomes arrays between two steps
_HANG_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Answered:
    """A question was answered, or its time is over."""

    question: int


class _Wait(NamedTuple):
    """Seconds of the clock from and until which somebody waits."""

    begun: float
    end: float


@dataclass(slots=True, eq=False)
class ReadQueue:
    """Reads and questions with deadlines. It `hangs` after half a second in vain, until the next
    result; meanwhile they end at once."""

    index: ColdIndex
    stats: ColdReport
    worker: Worker
    clock: Callable[[], float]
    hangs: bool = field(default=False, init=False)
    _reading: dict[BlockKey, tuple[Record, _Wait]] = field(default_factory=dict, init=False)
    _asking: dict[tuple[str, int], _Wait] = field(default_factory=dict, init=False)
    _under_way: set[BlockKey] = field(default_factory=set, init=False)
    _arrived: dict[str, deque[Recalled | Answered]] = field(default_factory=dict, init=False)

    def ask(self, question: int, records: tuple[Record, ...], wait: float) -> None:
        """Ask a remote store which blocks it has. `take` yields Answered within `wait` seconds."""
        namespace = records[0].namespace
        self._asking[namespace, question] = self._wait_from_now(wait)
        if self.hangs:
            self._end_wait_for_answer(namespace, question)
        else:
            self.worker.submit(ContainsJob(question, records))

    def read(self, record: Record, patience: float) -> None:
        key = record.key
        if key not in self.index:
            self.arrive(Recalled(record, reason="gone"))
        elif self.hangs:  # another read has waited in vain already
            self.stats.failed["timeout"] += 1
            self.arrive(Recalled(record, reason="timeout"))
        elif key not in self._reading:
            self._reading[key] = record, self._wait_from_now(patience)
            if key not in self._under_way:  # else an earlier caller gave up, but its read goes on
                self._under_way.add(key)
                self.index.lease(key)  # until the read has ended, even if nobody waits any more
                self.worker.submit(ReadJob(record))

    def end_question(self, question: ContainsJob, done: Done) -> None:
        if done.reason:
            self.stats.failed[done.reason] += 1
        for record in done.records:
            self.index.discover(record)
        self._end_wait_for_answer(question.records[0].namespace, question.id)

    def end_read(self, recalled: Recalled) -> None:
        key = recalled.record.key
        self._under_way.discard(key)
        self.index.release(key)
        if recalled.reason:
            self.stats.failed[recalled.reason] += 1
        else:
            self._count_read(recalled)
        if self._reading.pop(key, None) is not None:
            self.arrive(recalled)

    def arrive(self, event: Recalled) -> None:
        self._arrived.setdefault(event.record.namespace, deque()).append(event)

    def take(self, namespace: str) -> Iterator[Recalled | Answered]:
        """Yield up to about 64 MiB of a namespace's results."""
        arrived, bytes_left = self._arrived.get(namespace, deque()), _PROMOTED_BYTES
        while arrived and bytes_left > 0:
            event = arrived.popleft()
            bytes_left -= event.nbytes if isinstance(event, Recalled) else 0
            yield event

    def give_up_late(self) -> None:
        now = self.clock()
        for record, wait in list(self._reading.values()):
            if wait.end < now:
                del self._reading[record.key]
                self._note_late(wait, now)
                self.arrive(Recalled(record, reason="timeout"))
        for (namespace, question), wait in list(self._asking.items()):
            if wait.end < now:
                self._note_late(wait, now)
                self._end_wait_for_answer(namespace, question)

    def has_results(self, namespace: str) -> bool:
        return bool(self._arrived.get(namespace))

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether somebody waits, or has not taken a result."""
        return bool(self._reading or self._asking or any(self._arrived.values()))

    def _count_read(self, recalled: Recalled) -> None:
        self.index.learn(recalled.record)
        self.index.resize(recalled.record.key, recalled.nbytes)
        self.index.touch(recalled.record.key)
        self.stats.read += 1
        self.stats.read_bytes += recalled.nbytes

    def _end_wait_for_answer(self, namespace: str, question: int) -> None:
        if self._asking.pop((namespace, question), None) is not None:
            self._arrived.setdefault(namespace, deque()).append(Answered(question))

    def _wait_from_now(self, seconds: float) -> _Wait:
        now = self.clock()
        return _Wait(now, now + seconds)

    def _note_late(self, wait: _Wait, now: float) -> None:
        self.stats.failed["timeout"] += 1
        self.hangs = self.hangs or now - wait.begun >= _HANG_SECONDS
