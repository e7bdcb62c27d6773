"""The cold tier: blocks that outlive the hot tier and the process. Owned by the mlx thread.

It never makes the server wait: what can't be queued is dropped and counted, what can't be read in
time is computed. Its index is the truth about what is there as far as this process knows; a file
that is gone or damaged meanwhile is a miss like any other.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omlx_server.core.cold import ColdIndex, ColdReport, ColdStats, Entry
from omlx_server.core.keys import BlockKey, namespace_id
from omlx_server.core.packed import Packed, Record
from omlx_server.store.files import Description, Files, Found, Lock
from omlx_server.store.medium import Medium, MediumError, Name
from omlx_server.store.worker import (
    Clear,
    Delete,
    Done,
    Heads,
    Read,
    Scanned,
    Worker,
    Write,
    name_of,
)

_SCAN_SECONDS = 5.0
_PASSING = ("timeout", "unreachable")  # the block is there, and can be had another time
_EPOCH = 1_577_836_800.0  # 2020; an older date of a file is no date
_HEADS_AT_A_TIME = 64
_DAY_SECONDS = 86_400.0
_PROMOTED_BYTES = 64 << 20  # at most so much becomes arrays between two steps


@dataclass(frozen=True, slots=True)
class Recalled:
    """The end of a read: what came, or the reason why nothing did."""

    record: Record
    packed: Packed | None
    reason: str
    nbytes: int
    seconds: float


class ColdTier:
    """A write-behind cache in front of a medium. Where another process has the `lock` it reads
    only."""

    def __init__(
        self,
        medium: Medium,
        secret: bytes,
        *,
        budget: int,
        queue_bytes: int,
        ttl_days: float = 0,
        lock: Lock | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = ColdIndex(budget)
        self.stats = ColdStats()
        self.wake: Callable[[], None] = lambda: None
        self._queue_bytes = queue_bytes
        self._ttl_seconds = ttl_days * _DAY_SECONDS
        self._lock = lock
        self._files = medium if isinstance(medium, Files) else None
        self._writable = lock is None or lock.held
        self._clock = clock
        self._queued = 0
        self._pending: dict[BlockKey, Packed] = {}
        self._reading: dict[BlockKey, tuple[Record, float]] = {}  # until when somebody waits
        self._unlearned = 0
        self._under_way: set[BlockKey] = set()
        self._undeleted: dict[BlockKey, Delete] = {}
        self._at_once: list[Recalled] = []
        self._worker = Worker(medium, secret, lambda: self.wake())

    def start(self) -> None:
        """Start the thread and wait for its look at what is there, within reason."""
        self._worker.start()
        self._worker.scanned.wait(_SCAN_SECONDS)
        for result in self._worker.take():
            self._settle(result)

    def describe(self, namespace: str, model: str, path: Path, block_size: int) -> None:
        """Say what a namespace stands for, for people and for who looks for models that are gone.
        Before the start."""
        if self._files is None or not self._writable:
            return
        about = Description(namespace, model, str(path.absolute()), block_size, time.time())
        with suppress(MediumError):
            self._files.write_description(about)

    # -- in and out ----------------------------------------------------------------------

    def write(self, record: Record, packed: Callable[[], Packed], nbytes: int) -> None:
        """Queue a block of about `nbytes`; dropped and counted when there is no room for it."""
        key = record.key
        if key in self.index:
            self.index.touch(key)
            return
        if not self._writable:
            return
        if self._queued + nbytes > self._queue_bytes:
            self._drop("queue")
            return
        gone = self.index.add(record, nbytes)
        if gone is None:
            self._drop("budget")
            return
        self._delete(gone)
        self._pending[key] = packed()
        self._queued += self._pending[key].nbytes
        self._worker.submit(Write(record, self._pending[key]))

    def read(self, record: Record, patience: float) -> None:
        """Ask for a block; `poll` gives it, or the reason why not after `patience` seconds."""
        key = record.key
        pending = self._pending.get(key)
        if pending is not None:
            self._at_once.append(Recalled(record, pending, "", 0, 0.0))
        elif key not in self.index:
            self._at_once.append(Recalled(record, None, "gone", 0, 0.0))
        elif key not in self._reading:
            self._reading[key] = record, self._clock() + patience
            if key not in self._under_way:  # else somebody asked who did not wait to the end
                self._under_way.add(key)
                self.index.lease(key)
                self._worker.submit(Read(record))

    def poll(self) -> Iterator[Recalled]:
        """What has come since the last call; the rest is left for the next one."""
        at_once, self._at_once = self._at_once, []
        yield from at_once
        room = _PROMOTED_BYTES
        for result in self._worker.take():
            if room <= 0:
                self._worker.put_back(result)
                break
            recalled = self._settle(result)
            if recalled is not None:
                room -= recalled.nbytes
                yield recalled
        yield from self._overdue()

    @property
    def is_full(self) -> bool:
        """Whether the next write may be dropped."""
        return self._queued > self._queue_bytes // 2

    @property
    def waiting(self) -> bool:
        """Whether reads are under way."""
        return bool(self._reading or self._at_once)

    # -- by hand -------------------------------------------------------------------------

    def clear(self, namespace: str) -> None:
        """Forget every block of a namespace."""
        id = namespace_id(namespace)
        for entry in [e for e in self.index.entries() if e.namespace == id]:
            self.index.forget(entry.key)
            self._pending.pop(entry.key, None)
        self._worker.submit(Clear(id))

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

    def _settle(self, result: Done | Scanned) -> Recalled | None:
        match result:
            case Scanned():
                self._load(result)
            case Done(job=Write() as write):
                self._written(write, result)
            case Done(job=Read(record)):
                return self._read_done(record, result)
            case Done(job=Delete(name) as delete, reason=reason) if reason:
                self._undeleted[name.block_key] = delete
            case Done(job=Heads()):
                self._learn(result.records)
        return None

    def _load(self, scanned: Scanned) -> None:
        self.index.load(found.entry for found in scanned.found)
        for namespace in scanned.orphans:
            self.index.make_first_to_go(namespace)
        for found in scanned.found:
            if self._is_expired(found, scanned.found[-1]):
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

    def _read_done(self, record: Record, done: Done) -> Recalled | None:
        self._under_way.discard(record.key)
        self.index.release(record.key)
        waited_for = self._reading.pop(record.key, None) is not None
        if done.reason:
            self._fail(done.reason)
            if done.reason not in _PASSING and record.key not in self._pending:
                self.index.forget(record.key)
                if done.reason != "gone":
                    self._submit_delete(name_of(record))
        else:
            self.index.touch(record.key)
            self.stats.read += 1
            self.stats.read_bytes += done.nbytes
        if not waited_for:
            return None
        read = done.record or record
        return Recalled(read, done.packed, done.reason, done.nbytes, done.seconds)

    def _overdue(self) -> Iterator[Recalled]:
        now = self._clock()
        for record, _ in [late for late in self._reading.values() if late[1] < now]:
            del self._reading[record.key]
            self._fail("timeout")
            yield Recalled(record, None, "timeout", 0, 0.0)

    def _delete(self, entries: list[Entry]) -> None:
        for entry in entries:
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
