"""The cold tier: blocks that outlive the hot tier and the process. Owned by the mlx thread.

It never makes the server wait: what can't be queued is dropped and counted, what can't be read in
time is computed. Its index is the truth about what is there as far as this process knows; a file
that is gone or damaged meanwhile is a miss like any other. One tier serves all models of a process:
each polls for its own namespace.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from omlx_server.core.cold import ColdIndex, ColdReport, ColdStats, Entry
from omlx_server.core.keys import BlockKey, namespace_id
from omlx_server.core.packed import Packed, Record
from omlx_server.core.pins import Pins
from omlx_server.store.description import Description
from omlx_server.store.files import Files, Found
from omlx_server.store.format import file_bytes
from omlx_server.store.lock import Lock
from omlx_server.store.medium import Medium, MediumError, Name
from omlx_server.store.worker import (
    Clear,
    Contains,
    Delete,
    Done,
    Heads,
    Read,
    SavePins,
    Scanned,
    TakeOver,
    Touch,
    Worker,
    Write,
    name_of,
)

_SCAN_SECONDS = 5.0
_LEARN_SECONDS = 2.0  # states and tails are found only when their heads were read
_POLL_SECONDS = 0.005
_PASSING = ("timeout", "unreachable")  # the block is there, and can be had another time
_EPOCH = 1_577_836_800.0  # 2020; an older date of a file is no date
_HEADS_AT_A_TIME = 64
_DAY_SECONDS = 86_400.0
_PROMOTED_BYTES = 64 << 20  # at most so much becomes arrays between two steps
_TAKE_OVER_SECONDS = 10.0
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


class ColdTier:
    """A write-behind cache in front of a medium. Where another process has the `lock` it only
    reads, until that one ends.

    The medium is the directory `home` itself, or a remote one that can't be listed; then `home` has
    the pins alone, and what nobody wants any more is left to the store's own rules.
    """

    def __init__(
        self,
        medium: Medium,
        secret: bytes,
        *,
        budget: int,
        queue_bytes: int,
        ttl_days: float = 0,
        home: Files | None = None,
        lock: Lock | None = None,
        pins: Pins | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = medium if isinstance(medium, Files) else home
        self._listed = medium is self._home
        self.index = ColdIndex(budget, pins, listed=self._listed)
        self.stats = ColdStats()
        self.wake: Callable[[], None] = lambda: None
        self._queue_bytes = queue_bytes
        self._ttl_seconds = ttl_days * _DAY_SECONDS
        self._lock = lock
        self._writable = lock is None or lock.held
        self._clock = clock
        self._take_over_at = clock() + _TAKE_OVER_SECONDS
        self._queued = 0
        self._pending: dict[BlockKey, Packed] = {}
        self._reading: dict[BlockKey, tuple[Record, _Wait]] = {}
        self._asking: dict[tuple[str, int], _Wait] = {}
        self._descriptions: list[Description] = []
        self._hangs = False
        self._unlearned = 0
        self._under_way: set[BlockKey] = set()
        self._undeleted: dict[BlockKey, Delete] = {}
        self._arrived: dict[str, deque[Recalled | Answered]] = {}
        self._worker = Worker(medium, secret, self._home, lambda: self.wake())

    def start(self) -> None:
        """Start the thread and wait for its look at what is there, within reason."""
        self._worker.start()
        self._worker.scanned.wait(_SCAN_SECONDS)
        self._collect()
        end = time.monotonic() + _LEARN_SECONDS
        while self._unlearned and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            self._collect()

    def describe(self, namespace: str, model: str, path: Path, block_size: int) -> None:
        """Say what a namespace stands for, for people and for who looks for models that are gone.
        Before the start."""
        if self._home is None or not self._listed:
            return
        about = Description(namespace, model, str(path.absolute()), block_size, time.time())
        self._descriptions.append(about)
        if self._writable:
            with suppress(MediumError):
                self._home.write_description(about)

    # -- in and out ----------------------------------------------------------------------

    def write(self, record: Record, packed: Callable[[], Packed], nbytes: int) -> None:
        """Queue a block of about `nbytes`; dropped and counted when there is no room for it."""
        key = record.key
        if key in self.index:
            self.index.touch(key)
            return
        if not self._writable:
            self._try_to_take_over()
            return
        if self._queued + nbytes > self._queue_bytes:
            self._drop("queue")
            return
        gone = self.index.add(record, nbytes)
        if gone is None:
            self._drop("budget")
            return
        self._delete(gone)
        block = packed()
        self.index.lease(key)
        self.index.resize(key, file_bytes(record, block))
        self._delete(self.index.shrink_to(self.index.budget))
        self.index.release(key)
        self._pending[key] = block
        self._queued += block.nbytes
        self._worker.submit(Write(record, block))

    def ask(self, namespace: str, question: int, records: tuple[Record, ...], wait: float) -> None:
        """Find out which of these a store has that can't be listed; `poll` says when the index
        knows, or after `wait` seconds."""
        self._asking[namespace, question] = self._wait(wait)
        if self._hangs:
            self._end_question(namespace, question)
        else:
            self._worker.submit(Contains(question, records))

    def read(self, record: Record, patience: float) -> None:
        """Ask for a block; `poll` gives it, or the reason why not after `patience` seconds."""
        key = record.key
        pending = self._pending.get(key)
        if pending is not None:
            self._arrive(Recalled(record, pending, "", 0, 0.0))
        elif key not in self.index:
            self._arrive(Recalled(record, None, "gone", 0, 0.0))
        elif self._hangs:  # somebody has waited in vain already
            self._fail("timeout")
            self._arrive(Recalled(record, None, "timeout", 0, 0.0))
        elif key not in self._reading:
            self._reading[key] = record, self._wait(patience)
            if key not in self._under_way:  # else somebody asked who did not wait to the end
                self._under_way.add(key)
                self.index.lease(key)
                self._worker.submit(Read(record))

    def poll(self, namespace: str) -> Iterator[Recalled | Answered]:
        """What has come for a namespace since the last call; the rest is left for the next one."""
        self._collect()
        self._give_up_the_late()
        arrived, room = self._arrived.get(namespace, deque()), _PROMOTED_BYTES
        while arrived and room > 0:
            event = arrived.popleft()
            room -= event.nbytes if isinstance(event, Recalled) else 0
            yield event
        if arrived:
            self.wake()

    def reject(self, record: Record) -> None:
        """A block that was read is of no use."""
        self._fail("unusable")
        self.index.forget(record.key)
        if self._listed:
            self._submit_delete(name_of(record))

    @property
    def pending(self) -> Mapping[BlockKey, Packed]:
        """What waits to be written, or is being written."""
        return self._pending

    @property
    def is_full(self) -> bool:
        """Whether the next write may be dropped."""
        return self._queued > self._queue_bytes // 2

    @property
    def reads(self) -> bool:
        """Whether the thread has blocks to read, for whomever."""
        return bool(self._under_way)

    @property
    def waiting(self) -> bool:
        """Whether reads are under way."""
        return bool(self._reading or self._asking or any(self._arrived.values()))

    # -- by hand -------------------------------------------------------------------------

    def change(self, budget: int, queue_bytes: int, min_free_bytes: int) -> None:
        """Other bounds from now on. What is above them goes, once it is known what is whose."""
        self.index.budget, self._queue_bytes = budget, queue_bytes
        if self._home is not None:
            self._home.min_free_bytes = min_free_bytes
        if not self._unlearned:
            self._delete(self.index.shrink_to(budget))

    def clear(self, namespace: str) -> None:
        """Forget every block of a namespace."""
        self._clear(namespace_id(namespace))

    def clear_all(self) -> None:
        """Forget every block, of models that are not loaded as well."""
        for id in {entry.namespace for entry in self.index.entries()}:
            self._clear(id)

    def _clear(self, id: str) -> None:
        for entry in [e for e in self.index.entries() if e.namespace == id]:
            self.index.forget(entry.key)
            self._pending.pop(entry.key, None)
            if not self._listed:
                self._submit_delete(Name.of(id, entry.key))
        if self._listed:
            self._worker.submit(Clear(id))

    def used(self, records: Sequence[Record]) -> None:
        """These were used, the last of them last: the next process is to know as well."""
        for record in records:
            self.index.touch(record.key)
        if self._listed and self._writable:
            self._worker.submit(Touch(tuple(name_of(record) for record in records)))

    def save_pins(self) -> None:
        """They have changed."""
        if self._writable:
            self._worker.submit(SavePins(tuple(self.index.pins.all())))

    def close(self, seconds: float) -> None:
        """Write what is queued, as far as `seconds` reach, and end the thread."""
        end = self._clock() + seconds
        self._worker.drain(seconds)
        self._worker.stop(max(1.0, end - self._clock()))
        if self._lock is not None and not self._worker.is_alive():
            self._lock.release()  # else the end of this process does it

    def report(self) -> ColdReport:
        stats = self.stats
        return ColdReport(
            nbytes=self.index.nbytes,
            budget=self.index.budget,
            blocks=len(self.index),
            queued=self._queued,
            written=stats.written,
            written_bytes=stats.written_bytes,
            read=stats.read,
            read_bytes=stats.read_bytes,
            evicted=stats.evicted,
            dropped=tuple(stats.dropped.items()),
            failed=tuple(stats.failed.items()),
        )

    # -- inside --------------------------------------------------------------------------

    def _collect(self) -> None:
        for result in self._worker.take():
            self._hangs = False
            self._settle(result)

    def _settle(self, result: Done | Scanned) -> None:
        match result:
            case Scanned():
                self._load(result)
            case Done(job=Write() as write):
                self._written(write, result)
            case Done(job=Read(record)):
                self._read_done(record, result)
            case Done(job=Contains() as asked):
                self._answered(asked, result)
            case Done(job=Delete(name) as delete, reason=reason) if reason:
                self._undeleted[name.block_key] = delete
            case Done(job=Heads()):
                self._learn(result.records)
            case Done(job=TakeOver(lock)):
                self._writable = lock.held
                self.save_pins()  # those made meanwhile

    def _arrive(self, event: Recalled) -> None:
        self._arrived.setdefault(event.record.namespace, deque()).append(event)

    def _answered(self, asked: Contains, done: Done) -> None:
        if done.reason:
            self._fail(done.reason)
        for record in done.records:
            self.index.discover(record)
        self._end_question(asked.records[0].namespace, asked.id)

    def _end_question(self, namespace: str, question: int) -> None:
        if self._asking.pop((namespace, question), None) is not None:
            self._arrived.setdefault(namespace, deque()).append(Answered(question))

    def _try_to_take_over(self) -> None:
        now = self._clock()
        if self._lock is not None and now >= self._take_over_at:
            self._take_over_at = now + _TAKE_OVER_SECONDS
            self._worker.submit(TakeOver(self._lock, tuple(self._descriptions)))

    def _load(self, scanned: Scanned) -> None:
        self._writable = self._lock is None or self._lock.held  # who takes over looks first
        for pin in scanned.pins:
            if namespace_id(pin.namespace) not in scanned.orphans:
                self.index.pins.add(pin)
        self.index.load(found.entry for found in scanned.found)
        for namespace in scanned.orphans:
            self.index.make_first_to_go(namespace)
        for found in scanned.found:
            unusable = found.nbytes > self.index.budget  # it would cost all others their place
            if unusable or self._is_expired(found, scanned.found[-1]):
                self._delete(self.index.take(found.name.block_key))
        names = [f.name for f in reversed(scanned.found)]
        for first in range(0, len(names), _HEADS_AT_A_TIME):
            self._worker.submit(Heads(tuple(names[first : first + _HEADS_AT_A_TIME])))
            self._unlearned += 1

    def _learn(self, records: tuple[Record, ...]) -> None:
        """The budget may be smaller than it was. Nothing goes until it is known what is whose head:
        heads are written first, and by their dates alone would be the first to go."""
        for record in records:
            self.index.learn(record)
        self._unlearned -= 1
        if not self._unlearned:
            self._delete(self.index.shrink_to(self.index.budget))

    def _is_expired(self, found: Found, newest: Found) -> bool:
        """Measured against the last use of anything, because a clock may be wrong by decades."""
        if not self._ttl_seconds or found.mtime < _EPOCH:
            return False
        now = min(time.time(), newest.mtime + _DAY_SECONDS)
        return now - found.mtime > self._ttl_seconds

    def _written(self, write: Write, done: Done) -> None:
        key = write.record.key
        self._queued -= write.packed.nbytes
        newest = self._pending.get(key) is write.packed  # or it was evicted and came once more
        if newest:
            del self._pending[key]
        if done.reason:
            self._drop(done.reason)
            if newest:
                self.index.forget(key)
        else:
            self.stats.written += 1
            self.stats.written_bytes += done.nbytes
            self.index.resize(key, done.nbytes)
            self._delete(self.index.shrink_to(self.index.budget))
            self._delete_again()

    def _read_done(self, record: Record, done: Done) -> None:
        self._under_way.discard(record.key)
        self.index.release(record.key)
        waited_for = self._reading.pop(record.key, None) is not None
        if done.reason:
            self._fail(done.reason)
            if done.reason not in _PASSING and record.key not in self._pending:
                self.index.forget(record.key)
                if done.reason != "gone" and self._listed:
                    self._submit_delete(name_of(record))
        else:
            self._was_read(done)
        if waited_for:
            read = done.record or record
            self._arrive(Recalled(read, done.packed, done.reason, done.nbytes, done.seconds))

    def _was_read(self, done: Done) -> None:
        assert done.record is not None
        self.index.learn(done.record)
        self.index.resize(done.record.key, done.nbytes)
        self.index.touch(done.record.key)
        self.stats.read += 1
        self.stats.read_bytes += done.nbytes

    def _wait(self, seconds: float) -> "_Wait":
        now = self._clock()
        return _Wait(now, now + seconds)

    def _give_up_the_late(self) -> None:
        """Who waits goes on without; nobody else waits for something that hangs."""
        now = self._clock()
        for record, wait in [late for late in self._reading.values() if late[1].end < now]:
            del self._reading[record.key]
            self._late(wait, now)
            self._arrive(Recalled(record, None, "timeout", 0, 0.0))
        for question, wait in [late for late in self._asking.items() if late[1].end < now]:
            self._late(wait, now)
            self._end_question(*question)

    def _late(self, wait: "_Wait", now: float) -> None:
        self._fail("timeout")
        self._hangs = self._hangs or now - wait.begun >= _HANG_SECONDS

    def _delete(self, entries: list[Entry]) -> None:
        for entry in entries if self._listed else ():
            self.stats.evicted += self._writable
            self._submit_delete(Name.of(entry.namespace, entry.key))

    def _submit_delete(self, name: Name) -> None:
        if self._writable:
            self._worker.submit(Delete(name))

    def _delete_again(self) -> None:
        """Changes succeed again: so may the deletes that did not."""
        undeleted, self._undeleted = self._undeleted, {}
        for key, delete in undeleted.items():
            if key not in self.index and key not in self._pending:
                self._worker.submit(delete)

    def _drop(self, reason: str) -> None:
        self.stats.dropped[reason] = self.stats.dropped.get(reason, 0) + 1

    def _fail(self, reason: str) -> None:
        self.stats.failed[reason] = self.stats.failed.get(reason, 0) + 1
