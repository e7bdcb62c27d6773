"""The cold tier: blocks that outlive the hot tier and the process. Owned by the mlx thread.

It never makes the server wait: a block that can't be queued is dropped and counted, one that can't
be read in time is a miss. One tier serves all models.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.blocks.record import PASSING, PackedArrays, Recalled, Record
from omlx_server.core.cold.index import ColdEntry, ColdIndex, ColdReport, WriteCause
from omlx_server.store.block_file import file_bytes
from omlx_server.store.files import Files, NamespaceDescription, StoredFile
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
from omlx_server.store.written import WRITTEN, WrittenToday

_SCAN_SECONDS = 5.0
_LEARN_SECONDS = 2.0  # checkpoints and tails are found by their headers
_POLL_SECONDS = 0.005
_EPOCH = 1_577_836_800.0  # 2020; an older file date is wrong
_HEADERS_AT_A_TIME = 64
_DAY_SECONDS = 86_400.0
_TAKE_OVER_SECONDS = 10.0


class ColdTier:
    """A write-behind cache in front of a medium. Only reads while another process has the `lock`.

    `budget` and `queue_bytes`: the most bytes stored, and waiting to be written. Blocks stay unused
    for `ttl_days`; 0 for ever. They are in `home`, or in a `remote` store; pins always in `home`.
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
        daily_bytes: int = 0,
        today: Callable[[], int] = lambda: date.today().toordinal(),
    ) -> None:
        self._home = home
        self._in_directory = remote is None
        self.index = ColdIndex(budget, pins, listed=self._in_directory)
        self.stats = ColdReport()
        self._written = WrittenToday(daily_bytes, today, self._save_written)
        self.wake: Callable[[], None] = lambda: None
        self._queue_bytes = queue_bytes
        self._ttl_seconds = ttl_days * _DAY_SECONDS
        self._lock = lock
        self._writable = lock is None or lock.held
        self._clock = clock
        self._take_over_at = clock() + _TAKE_OVER_SECONDS
        self._queued_bytes = 0
        self.pending: dict[BlockKey, PackedArrays] = {}
        self._descriptions: dict[str, NamespaceDescription] = {}
        self._unread_headers = 0  # jobs that still read headers
        self._salts_to_clear: set[bytes] = set()  # when all headers are read
        self._failed_deletes: dict[BlockKey, DeleteJob] = {}
        self._unusable: set[BlockKey] = set()  # unusable blocks of a remote store
        self._worker = Worker(home, secret, remote, lambda: self.wake())
        self.reads = ReadQueue(self.index, self.stats, self._worker, clock)

    def start(self) -> None:
        """Start the I/O thread; wait at most 5 s for its scan, and 2 s for the blocks' headers."""
        self._worker.start()
        self._worker.scanned.wait(_SCAN_SECONDS)
        self.collect()
        end = time.monotonic() + _LEARN_SECONDS
        while self._unread_headers and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            self.collect()

    def describe(self, namespace: str, model: str, path: Path, block_size: int) -> None:
        if not self._in_directory:
            return
        description = NamespaceDescription(
            namespace, model, str(path.absolute()), block_size, time.time()
        )
        self._descriptions[namespace] = description
        if self._writable:
            write = partial(self._home.write_description, description)
            self._worker.submit(ChangeJob("describe", write))

    def may_write(self, key: BlockKey, nbytes: int, cause: WriteCause) -> bool:
        """Return whether the day has bytes left for a block; else count it as dropped. Pins are
        always written, and what is not stored on this machine."""
        is_exempt = key in self.index or key in self.index.pins or not self._writable
        if is_exempt or not self._in_directory:
            return True
        if self._written.allows(self._queued_bytes + nbytes, cause):
            return True
        self.stats.dropped["daily_writes"] += 1
        return False

    def write(self, record: Record, packed: Callable[[], PackedArrays], nbytes: int) -> None:
        """Queue a block of about `nbytes`; mark a stored one as used; drop one without room."""
        key = record.key
        if key in self.index:
            self.index.touch(key)
            return
        if not self._writable:
            self._try_to_take_over()
            return
        if self._queued_bytes + nbytes > self._queue_bytes:
            self.stats.dropped["queue"] += 1
            return
        evicted = self.index.add(record, nbytes)
        if evicted is None:
            self.stats.dropped["budget"] += 1
            return
        self._delete_evicted(evicted)
        block = packed()
        self.index.lease(key)  # so that it does not evict itself
        self.index.resize(key, file_bytes(record, block))
        self._delete_evicted(self.index.shrink_to(self.index.budget))
        self.index.release(key)
        self.pending[key] = block
        self._queued_bytes += block.nbytes
        self._worker.submit(WriteJob(record, block, replace=key in self._unusable))

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
        self.reads.give_up_late()
        yield from self.reads.take(namespace)
        if self.reads.has_results(namespace):
            self.wake()

    def collect(self) -> None:
        """Take in what the I/O thread has done."""
        for result in self._worker.take():
            self.reads.hangs = False
            self._take_result(result)

    def reject(self, record: Record) -> None:
        """Forget and delete an unusable block; the next write stores it again."""
        self.stats.failed["unusable"] += 1
        self.index.forget(record.key)
        self._delete_unusable(record)

    @property
    def is_full(self) -> bool:
        return self._queued_bytes > self._queue_bytes // 2

    def change(
        self, budget: int, queue_bytes: int, min_free_bytes: int, daily_bytes: int = 0
    ) -> None:
        """Set other bounds in bytes. `budget` is enforced once all headers are read."""
        self.index.budget, self._queue_bytes = budget, queue_bytes
        self._written.limit = daily_bytes
        self._home.keep_free(min_free_bytes)
        if not self._unread_headers:
            self._delete_evicted(self.index.shrink_to(budget))

    def clear(self, namespace: str) -> None:
        self._clear_namespace(namespace_id(namespace))

    def clear_all(self) -> None:
        """Delete every block, also of models that are not loaded."""
        for id in {entry.namespace for entry in self.index.entries()}:
            self._clear_namespace(id)

    def clear_salt(self, salt: bytes) -> None:
        """Delete every block of one salt, now or when its header is read. A block whose parent
        is not stored stays until evicted."""
        records = (entry.record for entry in self.index.entries())
        namespaces = {record.namespace for record in records if record is not None}
        self.clear_chains([root_key(namespace, salt) for namespace in namespaces])
        if self._unread_headers:
            self._salts_to_clear.add(salt)

    def drop(self, entries: Sequence[ColdEntry]) -> None:
        """Delete blocks that the index has forgotten."""
        for entry in entries:
            self.pending.pop(entry.key, None)
            if not self._in_directory:
                self._unusable.add(entry.key)  # the next write replaces what could not be deleted
            self._submit_delete(Name.of(entry.namespace, entry.key))

    def clear_chains(self, keys: Sequence[BlockKey]) -> None:
        """Delete the blocks with these keys, and every descendant."""
        self._forget(self.index.chains(keys), deletes=True)

    def _clear_namespace(self, id: str) -> None:
        entries = [entry for entry in self.index.entries() if entry.namespace == id]
        self._forget(entries, deletes=not self._in_directory)
        if self._in_directory:
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
        if self._in_directory and self._writable:
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
        self.collect()
        self._written.save(ends=True)
        self._worker.drain(end - self._clock())
        self._worker.stop(max(1.0, end - self._clock()))
        if self._lock is not None and not self._worker.is_alive():
            self._lock.release()  # else it ends with the process

    def report(self) -> ColdReport:
        return replace(
            self.stats,
            written_today=self._written.count(),
            daily_bytes=self._written.limit,
            nbytes=self.index.nbytes,
            budget=self.index.budget,
            blocks=len(self.index),
            queued=self._queued_bytes,
            dropped=self.stats.dropped.copy(),
            failed=self.stats.failed.copy(),
        )

    def _take_result(self, result: Result) -> None:
        match result:
            case Scanned():
                self._take_scan(result)
            case Done(job=WriteJob() as write):
                self._end_write(write, result)
            case Recalled():
                self._end_read(result)
            case Done(job=ContainsJob() as question):
                self.reads.end_question(question, result)
            case Done(job=DeleteJob(name) as delete, reason=reason) if reason:
                self._failed_deletes[name.block_key] = delete
            case Done(job=HeadersJob()):
                self._take_headers(result.records)
            case Done(job=TakeOverJob(lock)):
                self._writable = lock.held
                self.save_pins()  # also those of the time without the lock

    def _try_to_take_over(self) -> None:
        now = self._clock()
        if self._lock is not None and now >= self._take_over_at:
            self._take_over_at = now + _TAKE_OVER_SECONDS
            self._worker.submit(TakeOverJob(self._lock, tuple(self._descriptions.values())))

    def _take_scan(self, scanned: Scanned) -> None:
        self._writable = self._lock is None or self._lock.held  # a take-over scans first
        for pin in scanned.pins:
            if namespace_id(pin.namespace) not in scanned.orphans:
                self.index.pins.add(pin)
        self._written.resume(*scanned.written)
        self.index.load(block.entry for block in scanned.blocks)
        for namespace in scanned.orphans:
            self.index.make_first_to_go(namespace)
        for block in scanned.blocks:
            is_too_large = block.nbytes > self.index.budget  # it would evict all others
            if is_too_large or self._is_expired(block, scanned.blocks[-1]):
                self._delete_evicted(self.index.take(block.name.block_key))
        names = [block.name for block in reversed(scanned.blocks)]
        for start in range(0, len(names), _HEADERS_AT_A_TIME):
            self._worker.submit(HeadersJob(tuple(names[start : start + _HEADERS_AT_A_TIME])))
            self._unread_headers += 1

    def _take_headers(self, records: tuple[Record, ...]) -> None:
        """Take in headers. Evict only after the last one: heads of chains have the oldest dates."""
        for record in records:
            self.index.learn(record)
        self._unread_headers -= 1
        if not self._unread_headers:
            salts, self._salts_to_clear = self._salts_to_clear, set()
            for salt in salts:
                self.clear_salt(salt)
            self._delete_evicted(self.index.shrink_to(self.index.budget))

    def _is_expired(self, block: StoredFile, newest: StoredFile) -> bool:
        """Compare with the newest use, because a clock may be wrong by decades."""
        if not self._ttl_seconds or block.mtime < _EPOCH:
            return False
        now = min(time.time(), newest.mtime + _DAY_SECONDS)
        return now - block.mtime > self._ttl_seconds

    def _end_write(self, write: WriteJob, done: Done) -> None:
        key = write.record.key
        self._queued_bytes -= write.packed.nbytes
        is_newest = self.pending.get(key) is write.packed  # else it was evicted and written again
        if is_newest:
            del self.pending[key]
        if done.reason:
            self.stats.dropped[done.reason] += 1
            if is_newest:
                self.index.forget(key)
        elif done.nbytes:
            self._unusable.discard(key)
            self.stats.written += 1
            self.stats.written_bytes += done.nbytes
            if self._in_directory:
                self._written.add(done.nbytes)
            self.index.resize(key, done.nbytes)
            self._delete_evicted(self.index.shrink_to(self.index.budget))
            self._retry_deletes()

    def _save_written(self, content: bytes) -> None:
        if self._writable:
            save = partial(self._home.write_small, WRITTEN, content)
            self._worker.submit(ChangeJob("written", save))

    def _end_read(self, recalled: Recalled) -> None:
        self.reads.end_read(recalled)
        record, reason = recalled.record, recalled.reason
        if reason and reason not in PASSING and record.key not in self.pending:
            self.index.forget(record.key)
            if reason != "gone":
                self._delete_unusable(record)

    def _delete_unusable(self, record: Record) -> None:
        """Delete a block; in a shared store the next write replaces it."""
        if self._in_directory:
            self._submit_delete(name_of(record))
        else:
            self._unusable.add(record.key)

    def _delete_evicted(self, entries: list[ColdEntry]) -> None:
        if self._in_directory:  # a remote store evicts by its own rules
            for entry in entries:
                self.stats.evicted += self._writable
                self._submit_delete(Name.of(entry.namespace, entry.key))

    def _submit_delete(self, name: Name) -> None:
        if self._writable:
            self._worker.submit(DeleteJob(name))

    def _retry_deletes(self) -> None:
        undeleted, self._failed_deletes = self._failed_deletes, {}
        for key, delete in undeleted.items():
            if key not in self.index and key not in self.pending:
                self._worker.submit(delete)
