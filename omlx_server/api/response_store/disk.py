"""Keeps each response as a file, which outlives the process.

    <root>/<64 hex>.json                  a response
    <root>/.tmp-<16 hex>                  a response that is being written

The directory has mode 0700, files 0600; a file gets its name when it is complete. Other files are
never touched. If the disk fails, a response is not stored, but its client still gets it. Files of
earlier processes count as those of one owner until they are used.
"""

import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omlx_server.api.response_store.store import Damaged, Store

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"([0-9a-f]{64})\.json")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{16}")
_LEFTOVER_SECONDS = 3600
# Symbolic links are not followed. Without O_NONBLOCK, opening a FIFO waits for its writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskStore(Store):
    """A store of files below `root`. Raises OSError where the directory can't be made or read."""

    def __init__(self, root: Path, max_entries: int, max_bytes: int) -> None:
        super().__init__(max_entries, max_bytes)
        self._root = root
        root.mkdir(0o700, parents=True, exist_ok=True)
        for name, nbytes in self._files():
            if self._fits(nbytes):
                self._note(name, nbytes)
            else:  # a file that is larger than the whole store would evict all others
                self._remove(name)

    def _write(self, name: str, data: bytes) -> bool:
        path, temporary = self._path(name), self._root / f".tmp-{secrets.token_hex(8)}"
        try:
            self._root.mkdir(0o700, parents=True, exist_ok=True)  # somebody may have removed it
            with os.fdopen(os.open(temporary, _NEW, 0o600), "wb") as file:
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            _log.warning("a response could not be kept: %s", error.strerror)
            with suppress(OSError):
                temporary.unlink()
            return False
        return True

    def _read(self, name: str) -> bytes | None:
        path = self._path(name)
        try:
            data = _read(path, self._max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Damaged("unreadable") from error
        with suppress(OSError):
            os.utime(path, follow_symlinks=False)
        return data

    def _remove(self, name: str) -> bool:
        try:
            self._path(name).unlink()
        except OSError:
            return False
        return True

    def _path(self, name: str) -> Path:
        """Raises ValueError for a name that could lead out of the directory."""
        if not _NAME.fullmatch(name):
            raise ValueError("not the name of a stored response")
        return self._root / f"{name}.json"

    def _files(self) -> Iterator[tuple[str, int]]:
        """Yield names and sizes of files, least recently used first. Removes old temporary ones."""
        files = []
        with os.scandir(self._root) as entries:
            for entry in entries:
                match = _FILE.fullmatch(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    state = entry.stat(follow_symlinks=False)
                    files.append((state.st_mtime, match[1], state.st_size))
                elif _TEMPORARY.fullmatch(entry.name):
                    _remove_if_old(Path(entry.path))
        return ((name, nbytes) for _, name, nbytes in sorted(files))


def _read(path: Path, limit: int) -> bytes:
    """Return a file's bytes. Raises Damaged if it is no regular file or larger than `limit`, and
    OSError."""
    with open(path, "rb", opener=lambda path, _: os.open(path, _READ)) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise Damaged("unreadable")
        if state.st_size > limit:
            raise Damaged("too_large")
        return file.read(state.st_size)


def _remove_if_old(path: Path) -> None:
    with suppress(OSError):
        if time.time() - path.lstat().st_mtime > _LEFTOVER_SECONDS:
            path.unlink()
