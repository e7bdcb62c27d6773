"""The lock that decides which process may write to a directory of the cold tier."""

from pathlib import Path

from omlx_server.store.mediums.disk import (
    READ_ONLY,
    WRITE_REASONS,
    FileOperations,
    as_medium_errors,
    make_directory,
)
from omlx_server.store.mediums.medium import MediumError


class Lock:
    """A lock on the file `lock`, which the system releases when the process ends."""

    def __init__(self, root: Path, operations: FileOperations | None = None) -> None:
        self._root = root.absolute()
        self._operations = operations or FileOperations()
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def acquire(self) -> bool:
        """Return whether the lock is held; False if another has it or nobody can write here."""
        if self._fd is not None:
            return True
        try:
            make_directory(self._operations, self._root)
            fd = self._operations.open_shared(self._root / "lock")
        except OSError as error:
            if error.errno in READ_ONLY:
                return False
            raise MediumError(WRITE_REASONS.get(error.errno or 0, "io"), str(error)) from error
        with as_medium_errors(WRITE_REASONS):
            return self._lock_or_close(fd)

    def release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with as_medium_errors(WRITE_REASONS):
                self._operations.close(fd)

    def _lock_or_close(self, fd: int) -> bool:
        try:
            self._operations.lock(fd, wait=False)
        except OSError as error:
            self._operations.close(fd)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._fd = fd
        return True
