"""The cold tier's system calls on files, which tests make fail. They follow no symbolic link."""

import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from omlx_server.store.mediums.medium import MediumError

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
