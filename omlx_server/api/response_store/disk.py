"""Responses as files, one each, that outlive the process.

    <root>/<64 hex>.json                  a response
    <root>/.tmp-<16 hex>                  one that is being written

The directory is 0700 and files are 0600. A file has its name only when all of it is written. Names
of other patterns are never opened, counted or deleted. A disk that fails costs what would have been
kept, never an answer.
"""

import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omlx_server.api.response_store.store import Bounds, Damaged

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"([0-9a-f]{64})\.json")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}")
_LEFTOVER_SECONDS = 3600
# The last part is never a symbolic link. Without O_NONBLOCK, opening a FIFO waits for its writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskStore:
    """Raises OSError when it is made on a directory that can't be made or read."""

    keeps = True
    memory_bytes = 0

    def __init__(self, root: Path, max_entries: int, max_bytes: int) -> None:
        self._root = root
        self._bounds = Bounds(max_entries, max_bytes)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        root.mkdir(0o700, parents=True, exist_ok=True)
        for name, nbytes in self._found():
            # What has no room by itself would cost all others their place.
            fits = self._bounds.fits(nbytes)
            self._forget(self._bounds.add(name, nbytes) if fits else [name])

    def put(self, name: str, data: bytes) -> None:
        if not self._bounds.fits(len(data)):
            return
        with self._lock:
            try:
                self._write(self._path(name), data)
            except OSError as error:
                _log.warning("a response could not be kept: %s", error.strerror)
                return
            self._forget(self._bounds.add(name, len(data)))

    def get(self, name: str) -> bytes | None:
        path = self._path(name)
        with self._lock:
            try:
                data = _read(path, self._max_bytes)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise Damaged("unreadable") from error
            self._bounds.use(name)
            with suppress(OSError):
                os.utime(path, follow_symlinks=False)
            return data

    def delete(self, name: str) -> bool:
        with self._lock:
            self._bounds.remove(name)
            try:
                self._path(name).unlink()
            except OSError:
                return False
            return True

    def _path(self, name: str) -> Path:
        """A name of another shape could lead anywhere."""
        if not _NAME.fullmatch(name):
            raise ValueError("not the name of a stored response")
        return self._root / f"{name}.json"

    def _found(self) -> Iterator[tuple[str, int]]:
        """What an earlier process has left, the least recently used first."""
        files = []
        with os.scandir(self._root) as entries:
            for entry in entries:
                match = _FILE.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    found = entry.stat(follow_symlinks=False)
                    files.append((found.st_mtime, match[1], found.st_size))
                elif _TEMPORARY.fullmatch(entry.name):
                    _remove_if_old(Path(entry.path))
        return ((name, nbytes) for _, name, nbytes in sorted(files))

    def _forget(self, names: list[str]) -> None:
        for name in names:
            with suppress(OSError):
                self._path(name).unlink()

    def _write(self, path: Path, data: bytes) -> None:
        self._root.mkdir(0o700, parents=True, exist_ok=True)  # somebody may have removed it
        temporary = self._root / f".tmp-{secrets.token_hex(8)}"
        with os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as file:
            try:
                file.write(data)
                file.flush()
                temporary.replace(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise


def _read(path: Path, limit: int) -> bytes:
    """Raises Damaged for what is no file, or too large to be one of ours."""
    fd = os.open(path, _READ)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Damaged("unreadable")
        if found.st_size > limit:
            raise Damaged("too_large")
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(found.st_size)
    finally:
        os.close(fd)


def _remove_if_old(path: Path) -> None:
    """Another process may be writing it now."""
    with suppress(OSError):
        if time.time() - path.lstat().st_mtime > _LEFTOVER_SECONDS:
            path.unlink()
