"""Reads, writes and lists files, and refuses writes to a full disk. Owned by the I/O thread.

A file gets its name only when whole. Raises OSError where the system refuses, MediumError for a
file that should not be read.
"""

import errno
import fcntl
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from omlx_server.store.mediums.medium import Buffer, MediumError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

# Without O_NONBLOCK, opening a FIFO waits until somebody writes to it.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
# The `MediumError.reason` of an errno; of all others it is "io".
READ_REASONS: Mapping[int, str] = {}
WRITE_REASONS = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    **dict.fromkeys(READ_ONLY, "read-only"),
}
_TEMPORARY = re.compile(r"\.tmp-([1-9][0-9]{0,8})-([0-9a-f]{8})-[0-9a-f]{8}")

# Tells runs with the same process id apart, as in a container after a restart.
_RUN = secrets.token_hex(4)
# How long an answer of the system to how much is free is used.
_FREE_SECONDS = 1.0


class FileOperations:
    """System calls with our flags and modes."""

    def open_read(self, path: Path) -> int:
        return os.open(path, _READ)

    def open_new(self, path: Path) -> int:
        return os.open(path, _NEW, FILE_MODE)

    def open_shared(self, path: Path) -> int:
        return os.open(path, _SHARED, FILE_MODE)

    read = staticmethod(os.read)
    write = staticmethod(os.write)
    write_at = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fsync)
    close = staticmethod(os.close)
    stat_open = staticmethod(os.fstat)
    stat = staticmethod(Path.lstat)
    remove_directory = staticmethod(Path.rmdir)
    process_lives = staticmethod(psutil.pid_exists)

    def lock(self, fd: int, *, wait: bool) -> None:
        """Raises BlockingIOError if another process has the lock and not `wait`."""
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def scan(self, path: Path) -> list[os.DirEntry[str]]:
        with os.scandir(path) as entries:
            return list(entries)

    def stat_entry(self, entry: os.DirEntry[str]) -> os.stat_result:
        return entry.stat(follow_symlinks=False)

    def is_directory(self, entry: os.DirEntry[str]) -> bool:
        return entry.is_dir(follow_symlinks=False)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_directory(self, path: Path) -> None:
        path.mkdir(DIRECTORY_MODE)

    def set_mtime(self, path: Path, when: float) -> None:
        os.utime(path, (when, when), follow_symlinks=False)

    def free_bytes(self, path: Path) -> int:
        system = os.statvfs(path)
        return system.f_bavail * system.f_frsize


def make_directory(operations: FileOperations, path: Path) -> None:
    try:
        operations.make_directory(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_directory(operations, path.parent)
        with suppress(FileExistsError):
            operations.make_directory(path)


@contextmanager
def as_medium_errors(reasons: Mapping[int, str]) -> Iterator[None]:
    """Turn an OSError into a MediumError."""
    try:
        yield
    except OSError as error:
        raise MediumError(reasons.get(error.errno or 0, "io"), str(error)) from error


class Disk:
    """Small files in `kept` are written again if their directory is removed."""

    def __init__(
        self,
        operations: FileOperations,
        min_free_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._operations = operations
        self.min_free_bytes = min_free_bytes
        self._clock = clock
        self._free_bytes = 0
        self._free_expires = -math.inf
        self.kept: dict[Path, bytes] = {}

    def refuse_if_full(self, directory: Path, nbytes: int) -> None:
        """Raise MediumError if the disk would be too full after a write of `nbytes`."""
        if not self.min_free_bytes:
            return
        now = self._clock()
        if now >= self._free_expires:
            self._free_bytes = self.free_bytes(directory)
            self._free_expires = now + _FREE_SECONDS
        if self._free_bytes - nbytes < self.min_free_bytes:
            raise MediumError("full", f"{self._free_bytes} bytes are free")
        self._free_bytes -= nbytes

    def read(self, path: Path, limit: int, first: int | None = None) -> bytes | None:
        """Return the file, or its `first` bytes; None if it is missing. Raises MediumError for
        more than `limit` bytes and for anything but a regular file."""
        try:
            fd = self._operations.open_read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            status = self._operations.stat_open(fd)
            if not stat.S_ISREG(status.st_mode):
                raise MediumError("io", f"not a regular file: {path}")
            if status.st_size > limit:
                raise MediumError("too-large", f"{status.st_size} bytes: {path}")
            size = status.st_size if first is None else min(first, status.st_size)
            return self._read_all(fd, size)
        finally:
            self._operations.close(fd)

    def write(self, path: Path, parts: Sequence[Buffer]) -> None:
        temporary = path.with_name(f".tmp-{os.getpid()}-{_RUN}-{secrets.token_hex(4)}")
        try:
            fd = self._open_new(temporary)
            try:
                for part in parts:
                    self._write_all(fd, part)
            finally:
                self._operations.close(fd)
            self._operations.replace(temporary, path)
        except OSError:
            with suppress(OSError):  # a later start removes it
                self._operations.unlink(temporary)
            raise

    def is_file(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(self._operations.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def touch(self, path: Path, when: float) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            self._operations.set_mtime(path, when)

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            self._operations.unlink(path)

    def files(self, path: Path) -> Iterator[tuple[str, os.stat_result]]:
        for entry in self._entries(path):
            try:
                status = self._operations.stat_entry(entry)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield entry.name, status

    def directories(self, path: Path, pattern: re.Pattern[str]) -> list[str]:
        return [
            entry.name
            for entry in self._entries(path)
            if pattern.fullmatch(entry.name) and self._operations.is_directory(entry)
        ]

    def remove_leftovers(self, directory: Path) -> None:
        """Remove temporary files of dead processes."""
        for name, _ in self.files(directory):
            if self._is_leftover(name):
                self.remove(directory / name)

    def remove_if_empty(self, directory: Path) -> None:
        try:
            self._operations.remove_directory(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise

    def free_bytes(self, directory: Path) -> int:
        for path in (directory, *directory.parents):
            with suppress(FileNotFoundError):
                return self._operations.free_bytes(path)
        raise FileNotFoundError(errno.ENOENT, "no directory is there", str(directory))

    def _read_all(self, fd: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._operations.read(fd, size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _open_new(self, path: Path) -> int:
        try:
            return self._operations.open_new(path)
        except FileNotFoundError:
            make_directory(self._operations, path.parent)
            self._restore_kept()
            return self._operations.open_new(path)

    def _restore_kept(self) -> None:
        for path, content in self.kept.items():
            if not self.is_file(path):
                self.write(path, [content])

    def _write_all(self, fd: int, part: Buffer) -> None:
        view = memoryview(part)
        unwritten = view.cast("B") if view.nbytes else memoryview(b"")
        while unwritten:
            written = self._operations.write(fd, unwritten)
            if written == 0:
                raise OSError(errno.EIO, "nothing could be written")
            unwritten = unwritten[written:]

    def _entries(self, path: Path) -> list[os.DirEntry[str]]:
        try:
            return self._operations.scan(path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _is_leftover(self, name: str) -> bool:
        match = _TEMPORARY.fullmatch(name)
        if not match:
            return False
        pid, run = int(match[1]), match[2]
        if pid == os.getpid():  # perhaps of an earlier process with this id
            return run != _RUN
        return not self._operations.process_lives(pid)
