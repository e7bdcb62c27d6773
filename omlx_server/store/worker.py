"""The cold-io thread: the only one that waits for disks and networks. It moves bytes and hashes
them, decides nothing, and answers every job.

Reads go before writes: somebody waits for them. Writes and deletes stay in their order, so that
room is made before it is taken.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from omlx_server.core.blocks.keys import namespace_id
from omlx_server.core.blocks.pins import Pin
from omlx_server.core.blocks.record import Packed, Record
from omlx_server.core.guard import Crash, guarded
from omlx_server.store.description import Description
from omlx_server.store.files import PINS, Files, Found
from omlx_server.store.format import Corrupt, decode, encode
from omlx_server.store.lock import Lock
from omlx_server.store.mediums.medium import Medium, MediumError, Name
from omlx_server.store.pin_file import pins_as_bytes, pins_of_bytes

_log = logging.getLogger(__name__)
_WARN_SECONDS = 60.0
_TOUCH_SECONDS = 1e-5


@dataclass(frozen=True, slots=True)
class Write:
    """Keep a block."""

    record: Record
    packed: Packed


@dataclass(frozen=True, slots=True)
class Read:
    """Bring a block back."""

    record: Record


@dataclass(frozen=True, slots=True)
class Delete:
    name: Name


@dataclass(frozen=True, slots=True)
class Touch:
    """Note that blocks were used, in this order."""

    names: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    """Say what a namespace stands for."""

    about: Description


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget all blocks of a namespace (its id)."""

    namespace: str


@dataclass(frozen=True, slots=True)
class Contains:
    """Which of these are there, in a store that can't be listed? `id` is for who asks."""

    id: int
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class SavePins:
    pins: tuple[Pin, ...]


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Get the right to write, which another process had, say whose blocks come now, and look again
    at what is there."""

    lock: Lock
    descriptions: tuple[Description, ...] = ()


@dataclass(frozen=True, slots=True)
class Heads:
    """Learn more of blocks that a scan has found than their names."""

    names: tuple[Name, ...]


Change = Delete | Touch | Describe | Clear | SavePins | TakeOver
Job = Write | Read | Contains | Heads | Change


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a job. `reason` is empty when it worked; `record` and `packed` are what was
    read, `records` what was found."""

    job: Job
    reason: str = ""
    record: Record | None = None
    packed: Packed | None = None
    nbytes: int = 0
    seconds: float = 0.0
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Scanned:
    """What was there at the start, the least recently used first. `orphans` are namespaces of
    models that are gone."""

    found: tuple[Found, ...]
    orphans: tuple[str, ...] = ()
    pins: tuple[Pin, ...] = ()


Result = Done | Scanned


def name_of(record: Record) -> Name:
    """Where a block is kept."""
    return Name.of(namespace_id(record.namespace), record.key)


def _last_use(found: Found) -> float:
    return found.mtime


class Worker(threading.Thread):
    """Does jobs one after the other. `wake` is called when there are results to take. `home` is
    where pins are kept; it is the medium as well, unless that is a remote one."""

    def __init__(
        self, medium: Medium, secret: bytes, home: Files | None, wake: Callable[[], None]
    ) -> None:
        super().__init__(name="cold-io", daemon=True)
        self._medium = medium
        self._home = home
        self._files = home if medium is home else None
        self._secret = secret
        self._wake = wake
        self._jobs = threading.Condition()
        self._reads: deque[Read | Contains] = deque()
        self._changes: deque[Write | Change] = deque()
        self._later: deque[Heads] = deque()
        self._results: deque[Result] = deque()
        self._busy = False
        self._stopping = False
        self._warned = -_WARN_SECONDS
        self.scanned = threading.Event()

    # -- any thread ----------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        with self._jobs:
            match job:
                case Read() | Contains():
                    self._reads.append(job)
                case Heads():
                    self._later.append(job)
                case _:
                    self._changes.append(job)
            self._jobs.notify()

    def take(self) -> Iterator[Result]:
        """Results since the last call, in order."""
        while self._results:
            yield self._results.popleft()

    def drain(self, seconds: float) -> bool:
        """Wait until all changes are made. False when that takes longer."""
        end = time.monotonic() + seconds
        with self._jobs:
            while self._changes or self._busy:
                left = end - time.monotonic()
                if left <= 0 or not self.is_alive():
                    return False
                self._jobs.wait(min(left, 0.1))
        return True

    def stop(self, seconds: float) -> None:
        """End the thread; what it has not begun is dropped, but for the newest pins: whoever made
        or ended one has had an answer."""
        with self._jobs:
            self._stopping = True
            self._reads.clear()
            self._later.clear()
            pins = [job for job in self._changes if isinstance(job, SavePins)]
            self._changes = deque(pins[-1:])
            self._jobs.notify()
        self.join(seconds)

    # -- the thread ----------------------------------------------------------------------

    def run(self) -> None:
        self._results.append(self._scan())
        self.scanned.set()
        self._wake()
        while (job := self._next()) is not None:
            self._results.append(self._done(job))
            del job  # its block would stay in memory until the next one comes
            with self._jobs:
                self._busy = False
                self._jobs.notify_all()
            self._wake()
        try:
            self._medium.close()
        except MediumError as error:
            self._warn("closing", error)

    def _next(self) -> Job | None:
        with self._jobs:
            while True:
                job = self._first()
                if job is not None:
                    self._busy = True
                    return job
                if self._stopping:
                    return None
                self._jobs.wait()

    def _first(self) -> Job | None:
        if self._reads:
            return self._reads.popleft()
        if self._changes:
            return self._changes.popleft()
        return self._later.popleft() if self._later else None

    def _done(self, job: Job) -> Done:
        """Every failure is an answer, a flaw of ours as well: somebody may wait for it."""
        done = guarded(partial(self._do, job))
        if isinstance(done, Crash):
            _log.error("a job of the cold tier failed", exc_info=done.error)
            return Done(job, reason="io")
        return done

    def _do(self, job: Job) -> Done:
        begun = time.perf_counter()
        try:
            match job:
                case Write():
                    return self._write(job)
                case Read():
                    return self._read(job, begun)
                case Heads(names):
                    return Done(job, records=tuple(self._records(names)))
                case Contains(_, records):
                    there = self._medium.contains_many([name_of(r) for r in records])
                    return Done(job, records=tuple(r for r in records if name_of(r) in there))
                case _:
                    self._change(job)
        except MediumError as error:
            self._warn(type(job).__name__.lower(), error)
            return Done(job, reason=error.reason)
        return Done(job)

    def _change(self, job: Change) -> None:
        match job:
            case Delete(name):
                self._medium.delete(name)
            case Touch(names):
                self._touch(names)
            case Clear(namespace):
                self._clear(namespace)
            case Describe(about):
                if self._home is not None:
                    self._home.write_description(about)
            case SavePins(pins):
                if self._home is not None:
                    self._home.write_small(PINS, pins_as_bytes(pins))
            case TakeOver():
                self._take_over(job)

    def _write(self, job: Write) -> Done:
        try:
            parts = encode(job.record, job.packed, self._secret)
        except ValueError as error:
            raise MediumError("format", str(error)) from error
        self._medium.put(name_of(job.record), parts)
        return Done(job, nbytes=sum(memoryview(part).nbytes for part in parts))

    def _read(self, job: Read, begun: float) -> Done:
        name = name_of(job.record)
        data = self._medium.get(name)
        if data is None:
            return Done(job, reason="gone")
        try:
            record, packed = decode(data, self._secret, name)
        except Corrupt as error:
            _log.warning(
                "a stored block is damaged (%s) and is removed: %s", error.reason, name.key
            )
            if self._files:  # elsewhere it may be whole for others, who have another secret
                with suppress(MediumError):
                    self._files.delete(name)
            return Done(job, reason=error.reason)
        if self._files:
            with suppress(MediumError):  # a disk that became read-only can still be read
                self._files.touch(name, time.time())
        return Done(job, "", record, packed, len(data), time.perf_counter() - begun)

    def _touch(self, names: tuple[Name, ...]) -> None:
        """Some microseconds apart, so that the order can be told."""
        now = time.time()
        for number, name in enumerate(names):
            if self._files:
                self._files.touch(name, now + number * _TOUCH_SECONDS)

    def _clear(self, namespace: str) -> None:
        if self._files:
            about = self._files.describe(namespace)
            self._files.clear(namespace)
            if about is not None:  # more will come
                self._files.write_description(about)

    def _take_over(self, job: TakeOver) -> None:
        if not job.lock.acquire():
            raise MediumError("read-only", "another process writes to this directory")
        if self._home is not None:
            self._home.writable = True
            for about in job.descriptions:
                with suppress(MediumError):
                    self._home.write_description(about)
        self._results.append(self._scan())

    def _scan(self) -> Scanned:
        """What can't be looked at is passed over."""
        pins = self._pins()
        if self._files is None:
            return Scanned((), pins=pins)
        try:
            self._files.remove_leftovers()
        except MediumError as error:
            self._warn("scan", error)
        found = sorted(self._files.scan(on_error=partial(self._warn, "scan")), key=_last_use)
        known = {f.name.namespace for f in found} | {namespace_id(pin.namespace) for pin in pins}
        orphans = tuple(n for n in known if self._is_orphan(n))
        return Scanned(tuple(found), orphans, pins)

    def _pins(self) -> tuple[Pin, ...]:
        try:
            data = self._home.read_small(PINS) if self._home else None
        except MediumError as error:
            self._warn("pins", error)
            return ()
        return pins_of_bytes(data) if data else ()

    def _is_orphan(self, namespace: str) -> bool:
        description = self._files.describe(namespace) if self._files else None
        return description is not None and description.model_is_there is False

    def _records(self, names: tuple[Name, ...]) -> Iterator[Record]:
        if self._files is None:
            return
        for name in names:
            try:
                record = self._files.record(name)
            except MediumError as error:
                self._warn("heads", error)
                continue
            if record is not None:
                yield record

    def _warn(self, what: str, error: MediumError) -> None:
        """Once a minute: a full disk would fill the log as well."""
        now = time.monotonic()
        if now - self._warned >= _WARN_SECONDS:
            self._warned = now
            _log.warning("cold tier, %s: %s (%s)", what, error, error.reason)
