"""The cold tier: blocks that outlive the hot tier and the process. Owned by the mlx thread.

It never makes the server wait: what can't be queued is dropped and counted, what can't be read in
time is computed. Its index is the truth about what is there as far as this process knows; a file
that is gone or damaged meanwhile is a miss like any other. One tier serves all models of a process:
each polls for its own namespace.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.blocks.record import Packed, Record
from omlx_server.core.cold.index import ColdIndex, ColdReport, ColdStats, Entry
from omlx_server.store.description import Description
from omlx_server.store.files import Files, Found
from omlx_server.store.format import file_bytes
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import Medium, Name
from omlx_server.store.reads import Answered, Reads, Recalled
from omlx_server.store.worker import (
    Clear,
    Contains,
    Delete,
    Describe,
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
_TAKE_OVER_SECONDS = 10.0


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
        self._descriptions: dict[str, Description] = {}
        self._unlearned = 0
        self._unwanted: set[bytes] = set()  # salts; until it is known what is whose
        self._undeleted: dict[BlockKey, Delete] = {}
        self._worker = Worker(medium, secret, self._home, lambda: self.wake())
        self._reads = Reads(self.index, self.stats, self._worker, clock)

    def start(self) -> None:
        """Start the thread and wait for its look at what is there, within reason."""
        self._worker.start()
        self._worker.scanned.wait(_SCAN_SECONDS)
        self.collect()
        end = time.monotonic() + _LEARN_SECONDS
        while self._unlearned and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            self.collect()

    def describe(self, namespace: str, model: str, path: Path, block_size: int) -> None:
        """Say what a namespace stands for, for people and for who looks for models that are gone.
        Before the first block of it."""
        if not self._listed:
            return
        about = Description(namespace, model, str(path.absolute()), block_size, time.time())
        self._descriptions[namespace] = about
        if self._writable:
            self._worker.submit(Describe(about))

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
        self._reads.ask(namespace, question, records, wait)

    def read(self, record: Record, patience: float) -> None:
        """Ask for a block; `poll` gives it, or the reason why not after `patience` seconds."""
        pending = self._pending.get(record.key)
        if pending is not None:
            self._reads.arrive(Recalled(record, pending, "", 0, 0.0))
        else:
            self._reads.read(record, patience)

    def poll(self, namespace: str) -> Iterator[Recalled | Answered]:
        """What has come for a namespace since the last call; the rest is left for the next one."""
        self.collect()
        self._reads.give_up_the_late()
        yield from self._reads.take(namespace)
        if self._reads.has_come(namespace):
            self.wake()

    def collect(self) -> None:
        """Learn what the thread has done; `poll` does so, too, as long as somebody polls."""
        for result in self._worker.take():
            self._reads.hangs = False
            self._settle(result)

    def reject(self, record: Record) -> None:
        """A block that was read is of no use."""
        self._reads.fail("unusable")
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
        return self._reads.under_way

    @property
    def waiting(self) -> bool:
        """Whether reads are under way."""
        return self._reads.waiting

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

    def clear_salt(self, salt: bytes) -> None:
        """Forget every block of one salt, of models that are not loaded as well. What is found
        later to be of it goes then. A block whose parent is not stored can't be told apart, and
        goes when there is no room for it."""
        records = (entry.record for entry in self.index.entries())
        namespaces = {record.namespace for record in records if record is not None}
        self.clear_chains([root_key(namespace, salt) for namespace in namespaces])
        if self._unlearned:
            self._unwanted.add(salt)

    def clear_chains(self, keys: Sequence[BlockKey]) -> None:
        """Forget every block that hangs on one of these."""
        for entry in self.index.below(keys):
            self.index.forget(entry.key)
            self._pending.pop(entry.key, None)
            self._submit_delete(Name.of(entry.namespace, entry.key))

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

    def _settle(self, result: Done | Scanned) -> None:
        match result:
            case Scanned():
                self._load(result)
            case Done(job=Write() as write):
                self._written(write, result)
            case Done(job=Read(record)):
                self._read_done(record, result)
            case Done(job=Contains() as asked):
                self._reads.answered(asked, result)
            case Done(job=Delete(name) as delete, reason=reason) if reason:
                self._undeleted[name.block_key] = delete
            case Done(job=Heads()):
                self._learn(result.records)
            case Done(job=TakeOver(lock)):
                self._writable = lock.held
                self.save_pins()  # those made meanwhile

    def _try_to_take_over(self) -> None:
        now = self._clock()
        if self._lock is not None and now >= self._take_over_at:
            self._take_over_at = now + _TAKE_OVER_SECONDS
            self._worker.submit(TakeOver(self._lock, tuple(self._descriptions.values())))

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
            unwanted, self._unwanted = self._unwanted, set()
            for salt in unwanted:
                self.clear_salt(salt)
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
        self._reads.ended(record, done)
        if done.reason and done.reason not in _PASSING and record.key not in self._pending:
            self.index.forget(record.key)
            if done.reason != "gone" and self._listed:
                self._submit_delete(name_of(record))

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
