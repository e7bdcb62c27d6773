"""A large file that is being downloaded: the bytes so far, and a note of which they are.

    <name>.incomplete          the bytes, with holes where none have come yet
    <name>.ranges.incomplete   the note: how many bytes of each range are there

A process may be killed at any moment: bytes are written before they are noted, and the note goes
before the rename. Any thread; a lock keeps other processes away.
"""

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

END = ".incomplete"
NOTE_END = ".ranges.incomplete"
_MAGIC = b"omlxrng1"
_HEAD = struct.Struct("<8sQQ")
_COUNT = struct.Struct("<Q")
_LOCK_SECONDS = 0.2


class TransferStopped(Exception):
    """The transfer was stopped, or this range no longer exists."""


@dataclass(slots=True, eq=False)
class Range:
    index: int
    start: int
    length: int
    done: int

    @property
    def position(self) -> int:
        return self.start + self.done

    @property
    def is_done(self) -> bool:
        return self.done == self.length


class PartFile:
    """A file that this process alone fills, in ranges of `range_bytes` or an earlier process's
    size. `wait` is called with seconds while another process has the file."""

    def __init__(
        self, path: Path, nbytes: int, range_bytes: int, wait: Callable[[float], object]
    ) -> None:
        self.path, self.nbytes = path, nbytes
        self._lock = Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _locked(path, wait)
        try:
            self._divide(range_bytes)
        except BaseException:
            self._file.close()
            raise

    def write(self, at: Range, data: bytes) -> None:
        """Add bytes to a range. Raises TransferStopped, or OSError if the disk fails or they are
        too many."""
        with self._lock:
            if not self._is_current(at):
                raise TransferStopped
            if at.done + len(data) > at.length:
                raise OSError(errno.EBADMSG, "the server sends more than the hub has listed")
            _write_at(self._file, data, at.position)
            at.done += len(data)
            self._note_count(at)

    def join_ranges(self) -> tuple[Range, int] | None:
        """Make one empty range of the file; return it and the bytes lost, or None if done
        before."""
        with self._lock:
            if self._file.closed or len(self.ranges) == 1:
                return None
            lost = self.here
            self._notes.close()
            self._start_anew(self.nbytes)
            return self.ranges[0], lost

    def empty(self, at: Range) -> None:
        with self._lock:
            if not self._is_current(at):
                raise TransferStopped
            at.done = 0
            self._note_count(at)

    @property
    def here(self) -> int:
        return sum(at.done for at in self.ranges)

    def move_to(self, target: Path) -> None:
        """Rename the whole file and close it. Raises TransferStopped if it is closed."""
        with self._lock:
            if self._file.closed:
                raise TransferStopped
            os.fsync(self._file.fileno())
            self._notes.close()
            note_of(self.path).unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            self.path.replace(target)
            self._file.close()

    def remove(self) -> None:
        with self._lock:
            self._notes.close()
            note_of(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self._file.close()

    def close(self) -> None:
        """Close; the bytes stay for another process."""
        with self._lock:
            self._notes.close()
            self._file.close()

    def _is_current(self, at: Range) -> bool:
        return not self._file.closed and self.ranges[at.index : at.index + 1] == [at]

    def _divide(self, range_bytes: int) -> None:
        note = _noted(self.path, self.nbytes)
        if note is None and not note_of(self.path).exists():
            here = os.fstat(self._file.fileno()).st_size
            note = range_bytes, _beginning(here, self.nbytes, range_bytes)
        if note is None or sum(note[1]) == 0:
            self._start_anew(range_bytes)
        else:
            self._note(*note)

    def _start_anew(self, range_bytes: int) -> None:
        # The bytes go first: a note of more bytes than there are is ignored.
        self._file.truncate(0)
        self._note(range_bytes, [0] * _count(self.nbytes, range_bytes))

    def _note(self, range_bytes: int, done: Sequence[int]) -> None:
        lengths = _lengths(self.nbytes, range_bytes)
        self.ranges = [
            Range(index, index * range_bytes, length, here)
            for index, (length, here) in enumerate(zip(lengths, done, strict=True))
        ]
        head = _HEAD.pack(_MAGIC, self.nbytes, range_bytes)
        note = note_of(self.path)
        new = note.with_suffix(f"{note.suffix}.new")
        new.write_bytes(head + b"".join(map(_COUNT.pack, done)))
        new.replace(note)
        self._notes = note.open("r+b", buffering=0)

    def _note_count(self, at: Range) -> None:
        offset = _HEAD.size + at.index * _COUNT.size
        _write_at(self._notes, _COUNT.pack(at.done), offset)


def note_of(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(END) + NOTE_END)


def bytes_in(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def has_size(path: Path, nbytes: int) -> bool:
    return bytes_in(path) == nbytes and path.is_file()


def bytes_here(path: Path, nbytes: int) -> int:
    note = _noted(path, nbytes)
    if note is not None:
        return sum(note[1])
    size = bytes_in(path)
    return size if size <= nbytes and not note_of(path).exists() else 0


def _noted(path: Path, nbytes: int) -> tuple[int, list[int]] | None:
    try:
        data = note_of(path).read_bytes()
        magic, size, range_bytes = _HEAD.unpack_from(data)
    except (OSError, struct.error):
        return None
    if (magic, size) != (_MAGIC, nbytes) or range_bytes < 1:
        return None
    if len(data) != _HEAD.size + _COUNT.size * _count(nbytes, range_bytes):
        return None
    done = [count for (count,) in _COUNT.iter_unpack(data[_HEAD.size :])]
    ends = [index * range_bytes + count for index, count in enumerate(done) if count]
    fits = all(a <= b for a, b in zip(done, _lengths(nbytes, range_bytes), strict=True))
    return (range_bytes, done) if fits and max(ends, default=0) <= bytes_in(path) else None


def _beginning(here: int, nbytes: int, range_bytes: int) -> list[int]:
    if here > nbytes:
        here = 0
    lengths = _lengths(nbytes, range_bytes)
    return [min(max(here - index * range_bytes, 0), length) for index, length in enumerate(lengths)]


def _count(nbytes: int, range_bytes: int) -> int:
    return -(-nbytes // range_bytes)


def _lengths(nbytes: int, range_bytes: int) -> list[int]:
    return [min(range_bytes, nbytes - start) for start in range(0, nbytes, range_bytes)]


def _write_at(file: BinaryIO, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file.fileno(), view, offset)
        view, offset = view[written:], offset + written


def _locked(path: Path, wait: Callable[[float], object]) -> BinaryIO:
    """Open and lock the part. Its former owner may have renamed it."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
            file.close()
        except FileNotFoundError:
            file.close()
        except BlockingIOError:
            file.close()
            wait(_LOCK_SECONDS)
        except BaseException:
            file.close()
            raise
