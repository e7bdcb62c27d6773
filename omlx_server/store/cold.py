"""The cold tier: blocks that outlive the hot tier and the process. Owned by the mlx thread.

It never makes the server wait: a block that can't be queued is dropped and counted, one that can't
be read in time is a miss. One tier serves all models.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.blocks.record import PASSING, PackedArrays, Recalled, Record
from omlx_server.core.cold.index import ColdEntry, ColdIndex, ColdReport
from omlx_server.store.block_file import file_bytes
from omlx_server.store.description import NamespaceDescription
from omlx_server.store.files import Files, StoredFile
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import Medium, Name
from omlx_server.store.reads import Answered, ReadQueue
from omlx_server.store.worker import (
    ChangeJob,
    ContainsJob,
    DeleteJob,
    Done,
    HeadersJob,
    Result,
    SavePinsJob,
    Scanned,
    TakeOverJob,
    Worker,
    WriteJob,
    name_of,
)

_SCAN_SECONDS = 5.0
_LEARN_SECONDS = 2.0  # checkpoints and tails are found by their headers
_POLL_SECONDS = 0.005
_EPOCH = 1_577_836_800.0  # 2020; an older file date is wrong
_HEADS_AT_A_TIME = 64
_DAY_SECONDS = 86_400.0
_TAKE_OVER_SECONDS = 10.0


class ColdTier:
    """A write-behind cache in front of a medium. Only reads while another process has the `lock`.

    `budget` and `queue_bytes`: the most bytes stored, and waiting to be written. The scan deletes
    blocks unused for `ttl_days`; 0 keeps them. The medium is the directory `home`, or a `remote`
    store; `home` then holds only the pins.
    """

    def __init__(
        self,
        home: Files,
        secret: bytes,
        *,
        budget: int,
        queue_bytes: int,
        ttl_days: float = 0,
        remote: Medium | None = None,
        lock: Lock | None = None,
        pins: Pins | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._listed = remote is None
        self.index = ColdIndex(budget, pins, listed=self._listed)
        self.stats = ColdReport()
        self.wake: Callable[[], None] = lambda: None
        self._queue_bytes = queue_bytes
        self._ttl_seconds = ttl_days * _DAY_SECONDS
        self._lock = lock
        self._writable = lock is None or lock.held
        self._clock = clock
        self._take_over_at = clock() + _TAKE_OVER_SECONDS
        self._queued = 0
        self.pending: dict[BlockKey, PackedArrays] = {}
        self._descriptions: dict[str, NamespaceDescription] = {}
        self._unlearned = 0
        self._unwanted: set[bytes] = set()  # salts to clear when all headers are read
        self._undeleted: dict[BlockKey, DeleteJob] = {}
        self._useless: set[BlockKey] = set()  # unusable blocks of a remote store
        self._worker = Worker(home, secret, remote, lambda: self.wake())
        self.reads = ReadQueue(self.index, self.stats, self._worker, clock)

    def start(self) -> None:
        """Start the I/O thread; wait at most 5 s for its scan, and 2 s for the blocks' headers."""
        self._worker.start()
        self._worker.scanned.wait(_SCAN_SECONDS)
        self.collect()
        end = time.monotonic() + _LEARN_SECONDS
        while self._unlearned and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            self.collect()

    def describe(self, namespace: str, model: str, path: Path, block_size: int) -> None:
        if not self._listed:
            return
        description = NamespaceDescription(
            namespace, model, str(path.absolute()), block_size, time.time()
        )
        self._descriptions[namespace] = description
        if self._writable:
            self._worker.submit(
                ChangeJob("describe", partial(self._home.write_description, description))
            )

    def write(self, record: Record, packed: Callable[[], PackedArrays], nbytes: int) -> None:
        """Queue a block of about `nbytes`. A stored one is marked as used, one without room
        dropped."""
        key = record.key
        if key in self.index:
            self.index.touch(key)
            return
        if not self._writable:
            self._try_to_take_over()
            return
        if self._queued + nbytes > self._queue_bytes:
            self.stats.dropped["queue"] += 1
            return
        gone = self.index.add(record, nbytes)
        if gone is None:
            self.stats.dropped["budget"] += 1
            return
        self._delete(gone)
        block = packed()
        self.index.lease(key)
        self.index.resize(key, file_bytes(record, block))
        self._delete(self.index.shrink_to(self.index.budget))
        self.index.release(key)
        self.pending[key] = block
        self._queued += block.nbytes
        self._worker.submit(WriteJob(record, block, replace=key in self._useless))

    def read(self, record: Record, patience: float) -> None:
        """Ask for a block. Within `patience` seconds `poll` yields it or why not."""
        pending = self.pending.get(record.key)
        if pending is not None:
            self.reads.arrive(Recalled(record, pending))
        else:
            self.reads.read(record, patience)

    def poll(self, namespace: str) -> Iterator[Recalled | Answered]:
        """Yield a namespace's new results; call `wake` if some are left."""
        self.collect()
        self.reads.give_up_the_late()
        yield from self.reads.take(namespace)
        if self.reads.has_come(namespace):
            self.wake()

    def collect(self) -> None:
        for result in self._worker.take():
            self.reads.hangs = False
            self._settle(result)

    def reject(self, record: Record) -> None:
        """Forget and delete an unusable block; the next write stores it again."""
        self.stats.failed["unusable"] += 1
        self.index.forget(record.key)
        self._let_go(record)

    @property
    def is_full(self) -> bool:
        return self._queued > self._queue_bytes // 2

    def change(self, budget: int, queue_bytes: int, min_free_bytes: int) -> None:
        """Set other bounds in bytes. `budget` is enforced once all headers are read."""
        self.index.budget, self._queue_bytes = budget, queue_bytes
        self._home.min_free_bytes = min_free_bytes
        if not self._unlearned:
            self._delete(self.index.shrink_to(budget))

    def clear(self, namespace: str) -> None:
        self._clear(namespace_id(namespace))

    def clear_all(self) -> None:
        """Delete every block, also of models that are not loaded."""
        for id in {entry.namespace for entry in self.index.entries()}:
            self._clear(id)

    def clear_salt(self, salt: bytes) -> None:
        """Delete every block of one salt, now or when its header is read. A block whose parent
        is not stored stays until evicted."""
        records = (entry.record for entry in self.index.entries())
        namespaces = {record.namespace for record in records if record is not None}
        self.clear_chains([root_key(namespace, salt) for namespace in namespaces])
        if self._unlearned:
            self._unwanted.add(salt)

    def clear_chains(self, keys: Sequence[BlockKey]) -> None:
        """Delete every descendant of these keys."""
        self._forget(self.index.descendants(keys), deletes=True)

    def _clear(self, id: str) -> None:
        entries = [entry for entry in self.index.entries() if entry.namespace == id]
        self._forget(entries, deletes=not self._listed)
        if self._listed:
            self._worker.submit(ChangeJob("clear", partial(self._worker.clear, id)))

    def _forget(self, entries: list[ColdEntry], *, deletes: bool) -> None:
        for entry in entries:
            self.index.forget(entry.key)
            self.pending.pop(entry.key, None)
            if deletes:
                self._submit_delete(Name.of(entry.namespace, entry.key))

    def mark_used(self, records: Sequence[Record]) -> None:
        """Mark blocks as used, the last one last; in a directory also on disk."""
        for record in records:
            self.index.touch(record.key)
        if self._listed and self._writable:
            names = [name_of(record) for record in records]
            self._worker.submit(ChangeJob("touch", partial(self._worker.touch, names)))

    def save_pins(self) -> None:
        if self._writable:
            self._worker.submit(SavePinsJob(tuple(self.index.pins.all())))

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` until the queue is written. Any thread."""
        self._worker.drain(seconds)

    def close(self, seconds: float) -> None:
        """Write the queue for at most `seconds`; end the thread within a second more."""
        end = self._clock() + seconds
        self._worker.drain(seconds)
        self._worker.stop(max(1.0, end - self._clock()))
        if self._lock is not None and not self._worker.is_alive():
            self._lock.release()  # else it ends with the process

    def report(self) -> ColdReport:
        return replace(
            self.stats,
            nbytes=self.index.nbytes,
            budget=self.index.budget,
            blocks=len(self.index),
            queued=self._queued,
            dropped=self.stats.dropped.copy(),
            failed=self.stats.failed.copy(),
        )

    def _settle(self, result: Result) -> None:
        match result:
            case Scanned():
                self._load(result)
            case Done(job=WriteJob() as write):
                self._written(write, result)
            case Recalled():
                self._recalled(result)
            case Done(job=ContainsJob() as question):
                self.reads.end_question(question, result)
            case Done(job=DeleteJob(name) as delete, reason=reason) if reason:
                self._undeleted[name.block_key] = delete
            case Done(job=HeadersJob()):
                self._learn(result.records)
            case Done(job=TakeOverJob(lock)):
                self._writable = lock.held
                self.save_pins()  # also those of the time without the lock

    def _try_to_take_over(self) -> None:
        now = self._clock()
        if self._lock is not None and now >= self._take_over_at:
            self._take_over_at = now + _TAKE_OVER_SECONDS
            self._worker.submit(TakeOverJob(self._lock, tuple(self._descriptions.values())))

    def _load(self, scanned: Scanned) -> None:
        self._writable = self._lock is None or self._lock.held  # a take-over scans first
        for pin in scanned.pins:
            if namespace_id(pin.namespace) not in scanned.orphans:
                self.index.pins.add(pin)
        self.index.load(block.entry for block in scanned.blocks)
        for namespace in scanned.orphans:
            self.index.make_first_to_go(namespace)
        for block in scanned.blocks:
            is_too_large = block.nbytes > self.index.budget  # it would evict all others
            if is_too_large or self._is_expired(block, scanned.blocks[-1]):
                self._delete(self.index.take(block.name.block_key))
        names = [block.name for block in reversed(scanned.blocks)]
        for first in range(0, len(names), _HEADS_AT_A_TIME):
            self._worker.submit(HeadersJob(tuple(names[first : first + _HEADS_AT_A_TIME])))
            self._unlearned += 1

    def _learn(self, records: tuple[Record, ...]) -> None:
        """Take in headers. Evict only after the last one: heads of chains have the oldest dates."""
        for record in records:
            self.index.learn(record)
        self._unlearned -= 1
        if not self._unlearned:
            unwanted, self._unwanted = self._unwanted, set()
            for salt in unwanted:
                self.clear_salt(salt)
            self._delete(self.index.shrink_to(self.index.budget))

    def _is_expired(self, block: StoredFile, newest: StoredFile) -> bool:
        """Compare with the newest use, because a clock may be wrong by decades."""
        if not self._ttl_seconds or block.mtime < _EPOCH:
            return False
        now = min(time.time(), newest.mtime + _DAY_SECONDS)
        return now - block.mtime > self._ttl_seconds

    def _written(self, write: WriteJob, done: Done) -> None:
        key = write.record.key
        self._queued -= write.packed.nbytes
        newest = self.pending.get(key) is write.packed  # else it was evicted and written again
        if newest:
            del self.pending[key]
        if done.reason:
            self.stats.dropped[done.reason] += 1
            if newest:
                self.index.forget(key)
        elif done.nbytes:
            self._useless.discard(key)
            self.stats.written += 1
            self.stats.written_bytes += done.nbytes
            self.index.resize(key, done.nbytes)
            self._delete(self.index.shrink_to(self.index.budget))
            self._delete_again()

    def _recalled(self, recalled: Recalled) -> None:
        self.reads.end_read(recalled)
        record, reason = recalled.record, recalled.reason
        if reason and reason not in PASSING and record.key not in self.pending:
            self.index.forget(record.key)
            if reason != "gone":
                self._let_go(record)

    def _let_go(self, record: Record) -> None:
        if self._listed:
            self._submit_delete(name_of(record))
        else:
            self._useless.add(record.key)

    def _delete(self, entries: list[ColdEntry]) -> None:
        for entry in entries if self._listed else ():
            self.stats.evicted += self._writable
            self._submit_delete(Name.of(entry.namespace, entry.key))

    def _submit_delete(self, name: Name) -> None:
        if self._writable:
            self._worker.submit(DeleteJob(name))

    def _delete_again(self) -> None:
        undeleted, self._undeleted = self._undeleted, {}
        for key, delete in undeleted.items():
            if key not in self.index and key not in self.pending:
                self._worker.submit(delete)
