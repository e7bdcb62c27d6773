"""The cold-io thread, which waits for disks. Reads go first; changes keep their order."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from omlx_server.core.blocks.keys import namespace_id
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.blocks.record import PackedArrays, Recalled, Record
from omlx_server.core.crash import Crash, guarded
from omlx_server.store.block_file import Corrupt, decode, encode
from omlx_server.store.files import PINS, Files, NamespaceDescription, StoredFile
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import Medium, MediumError, Name, nbytes_of
from omlx_server.store.pin_file import pins_as_bytes, pins_of_bytes
from omlx_server.store.secret import name_in_shared_store
from omlx_server.store.written import WRITTEN, written_of_bytes

_log = logging.getLogger(__name__)
_WARN_SECONDS = 60.0
_TOUCH_SECONDS = 1e-5


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Store a block. A remote store that has it keeps it, unless `replace`."""

    record: Record
    packed: PackedArrays
    replace: bool = False


@dataclass(frozen=True, slots=True)
class ReadJob:
    record: Record


@dataclass(frozen=True, slots=True)
class DeleteJob:
    name: Name


@dataclass(frozen=True, slots=True)
class ChangeJob:
    """Call `change` on the worker's thread; it may raise MediumError. `name` is for the log."""

    name: str
    change: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ContainsJob:
    """Ask the store which of these blocks it has."""

    id: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class SavePinsJob:
    """Store all pins in place of the earlier ones."""

    pins: tuple[Pin, ...]


@dataclass(frozen=True, slots=True)
class TakeOverJob:
    """Take the lock from a process that ended, write the descriptions, and scan again."""

    lock: Lock
    descriptions: tuple[NamespaceDescription, ...] = ()


@dataclass(frozen=True, slots=True)
class HeadersJob:
    """Read the records in the headers of these files."""

    names: tuple[Name, ...]


Ordered = WriteJob | DeleteJob | ChangeJob | SavePinsJob | TakeOverJob
Job = Ordered | ReadJob | ContainsJob | HeadersJob


@dataclass(frozen=True, slots=True)
class Done:
    """`reason` is empty on success; `nbytes` were written."""

    job: Job
    reason: str = ""
    nbytes: int = 0
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Scanned:
    """The blocks, least recently used first. `orphans`: namespaces without a model."""

    blocks: tuple[StoredFile, ...]
    orphans: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()
    written: tuple[int, int] = (0, 0)  # a day, and bytes written on it


Result = Done | Recalled | Scanned


def name_of(record: Record) -> Name:
    return Name.of(namespace_id(record.namespace), record.key)


def _failed(job: Job, reason: str) -> Done | Recalled:
    return Recalled(job.record, reason=reason) if isinstance(job, ReadJob) else Done(job, reason)


class Worker(threading.Thread):
    """Does jobs in order, and calls `wake` when there are results. `home` keeps the pins, and
    the blocks unless there is a `remote` store."""

    def __init__(
        self, home: Files, secret: bytes, remote: Medium | None, wake: Callable[[], None]
    ) -> None:
        super().__init__(name="cold-io", daemon=True)
        self._home = home
        self._medium: Medium = remote or home
        self._in_directory = remote is None
        self._secret = secret
        self._wake = wake
        self._jobs = threading.Condition()
        self._read_queue: deque[ReadJob | ContainsJob] = deque()
        self._changes: deque[Ordered] = deque()
        self._later: deque[HeadersJob] = deque()
        self._results: deque[Result] = deque()
        self._busy = False
        self._stopping = False
        self._warned_at = -_WARN_SECONDS
        self.scanned = threading.Event()

    # -- any thread ----------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        with self._jobs:
            match job:
                case ReadJob() | ContainsJob():
                    self._read_queue.append(job)
                case HeadersJob():
                    self._later.append(job)
                case _:
                    self._changes.append(job)
            self._jobs.notify()

    def take(self) -> Iterator[Result]:
        while self._results:
            yield self._results.popleft()

    def drain(self, seconds: float) -> bool:
        """Wait at most `seconds` until all changes are made; return whether they are."""
        end = time.monotonic() + seconds
        with self._jobs:
            while self._changes or self._busy:
                left = end - time.monotonic()
                if left <= 0 or not self.is_alive():
                    return False
                self._jobs.wait(min(left, 0.1))
        return True

    def stop(self, seconds: float) -> None:
        """End the thread within `seconds`. Drops queued jobs, but not the newest pins."""
        with self._jobs:
            self._stopping = True
            self._read_queue.clear()
            self._later.clear()
            pins = [job for job in self._changes if isinstance(job, SavePinsJob)]
            self._changes = deque(pins[-1:])
            self._jobs.notify()
        self.join(seconds)

    # -- changes, made on the thread -----------------------------------------------------

    def touch(self, names: Sequence[Name]) -> None:
        """Mark blocks as used in this order, microseconds apart."""
        now = time.time()
        for number, name in enumerate(names):
            self._home.touch(name, now + number * _TOUCH_SECONDS)

    def clear(self, namespace: str) -> None:
        """Delete all blocks of a namespace (its id), not its description."""
        description = self._home.describe(namespace)
        self._home.clear(namespace)
        if description is not None:  # more blocks of it will come
            self._home.write_description(description)

    def run(self) -> None:
        self._results.append(self._scan())
        self.scanned.set()
        self._wake()
        while (job := self._wait_for_job()) is not None:
            self._results.append(self._do_safely(job))
            del job  # its block would stay in memory until the next one comes
            with self._jobs:
                self._busy = False
                self._jobs.notify_all()
            self._wake()
        try:
            self._medium.close()
        except MediumError as error:
            self._warn("closing", error)

    def _wait_for_job(self) -> Job | None:
        with self._jobs:
            # Reads first: requests wait for them.
            while not (jobs := self._read_queue or self._changes or self._later):
                if self._stopping:
                    return None
                self._jobs.wait()
            self._busy = True
            return jobs.popleft()

    def _do_safely(self, job: Job) -> Done | Recalled:
        """Do a job. A crash is a result: a request may wait for it."""
        result = guarded(partial(self._do, job))
        if isinstance(result, Crash):
            _log.error("a job of the cold tier failed", exc_info=result.error)
            return _failed(job, "io")
        return result

    def _do(self, job: Job) -> Done | Recalled:
        begun = time.perf_counter()
        try:
            match job:
                case WriteJob():
                    return self._write(job)
                case ReadJob(record):
                    return self._read(record, begun)
                case HeadersJob(names):
                    return Done(job, records=tuple(self._read_headers(names)))
                case ContainsJob(_, records):
                    by_name = {self._stored_name(name_of(record)): record for record in records}
                    stored = self._medium.contains_many(by_name)
                    matches = [record for name, record in by_name.items() if name in stored]
                    return Done(job, records=tuple(matches))
                case DeleteJob(name):
                    self._medium.delete(self._stored_name(name))
                case ChangeJob(_, change):
                    change()
                case SavePinsJob(pins):
                    self._home.write_small(PINS, pins_as_bytes(pins))
                case TakeOverJob():
                    self._take_over(job)
        except MediumError as error:
            kind = type(job).__name__.removesuffix("Job").lower()
            self._warn(job.name if isinstance(job, ChangeJob) else kind, error)
            return _failed(job, error.reason)
        return Done(job)

    def _stored_name(self, name: Name) -> Name:
        return name if self._in_directory else name_in_shared_store(name, self._secret)

    def _write(self, job: WriteJob) -> Done:
        stored_name = self._stored_name(name_of(job.record))
        if not (self._in_directory or job.replace) and stored_name in self._medium.contains_many(
            [stored_name]
        ):
            return Done(job)
        try:
            parts = encode(job.record, job.packed, self._secret)
        except ValueError as error:
            raise MediumError("format", str(error)) from error
        self._medium.put(stored_name, parts)
        return Done(job, nbytes=nbytes_of(parts))

    def _read(self, expected: Record, begun: float) -> Recalled:
        name = name_of(expected)
        data = self._medium.get(self._stored_name(name))
        if data is None:
            return Recalled(expected, reason="gone")
        try:
            record, packed = decode(data, self._secret, name)
        except Corrupt as error:
            _log.warning(
                "a stored block is damaged (%s) and is removed: %s", error.reason, name.key
            )
            if self._in_directory:  # in a shared store it may be sound for other secrets
                with suppress(MediumError):
                    self._home.delete(name)
            return Recalled(expected, reason=error.reason)
        if self._in_directory:
            with suppress(MediumError):  # a disk that became read-only can still be read
                self._home.touch(name, time.time())
        return Recalled(record, packed, "", len(data), time.perf_counter() - begun)

    def _take_over(self, job: TakeOverJob) -> None:
        if not job.lock.acquire():
            raise MediumError("read-only", "another process writes to this directory")
        self._home.writable = True
        for description in job.descriptions:
            with suppress(MediumError):
                self._home.write_description(description)
        self._results.append(self._scan())

    def _scan(self) -> Scanned:
        pins = pins_of_bytes(self._read_small(PINS))
        if not self._in_directory:
            return Scanned((), pins=pins)
        written = written_of_bytes(self._read_small(WRITTEN))
        try:
            self._home.remove_leftovers()
        except MediumError as error:
            self._warn("scan", error)
        files = self._home.scan(on_error=partial(self._warn, "scan"))
        blocks = sorted(files, key=lambda block: block.mtime)
        namespaces = {block.name.namespace for block in blocks}
        namespaces |= {namespace_id(pin.namespace) for pin in pins}
        pairs = [(id, self._home.describe(id)) for id in namespaces]
        orphans = [id for id, about in pairs if about and about.model_is_there is False]
        return Scanned(tuple(blocks), tuple(orphans), pins, written)

    def _read_small(self, name: str) -> bytes:
        try:
            return self._home.read_small(name) or b""
        except MediumError as error:
            self._warn(name, error)
            return b""

    def _read_headers(self, names: tuple[Name, ...]) -> Iterator[Record]:
        for name in names:
            try:
                record = self._home.record(name)
            except MediumError as error:
                self._warn("heads", error)
                continue
            if record is not None:
                yield record

    def _warn(self, what: str, error: MediumError) -> None:
        """Log at most once a minute: the log may be on the full disk."""
        now = time.monotonic()
        if now - self._warned_at >= _WARN_SECONDS:
            self._warned_at = now
            _log.warning("cold tier, %s: %s (%s)", what, error, error.reason)
