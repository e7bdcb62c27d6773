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

from omlx_server.api.response_store.store import DamagedResponse, ResponseStore

_log = logging.getLogger(__name__)

_ENTRY_NAME = re.compile(r"[0-9a-f]{64}")
_ENTRY_FILE = re.compile(r"([0-9a-f]{64})\.json")
_TEMPORARY_FILE = re.compile(r"\.tmp-[0-9a-f]{16}")
_OLD_SECONDS = 3600
# Symbolic links are not followed. Without O_NONBLOCK, opening a FIFO waits for its writer.
_OPEN_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DiskStore(ResponseStore):
    """A store of files below `root`. Raises OSError where the directory can't be made or read."""

    def __init__(self, root: Path, max_entries: int, max_bytes: int) -> None:
        super().__init__(max_entries, max_bytes)
        self._root = root
        root.mkdir(0o700, parents=True, exist_ok=True)
        for name, nbytes in self._list_entries():
            if self._may_keep(nbytes):
                self._record_use(name, nbytes)
            else:  # a file that is larger than the whole store would evict all others
                self._remove_entry(name)
        self._remove_old_temporary_files()

    def _write_entry(self, name: str, data: bytes) -> bool:
        path, temporary = self._path_of(name), self._root / f".tmp-{secrets.token_hex(8)}"
        try:
            self._root.mkdir(0o700, parents=True, exist_ok=True)  # somebody may have removed it
            with os.fdopen(os.open(temporary, _OPEN_NEW, 0o600), "wb") as file:
                file.write(data)
            temporary.replace(path)
        except OSError as error:
            _log.warning("a response could not be kept: %s", error.strerror)
            with suppress(OSError):
                temporary.unlink()
            return False
        return True

    def _read_entry(self, name: str) -> bytes | None:
        path = self._path_of(name)
        try:
            data = _read_regular_file(path, self._max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DamagedResponse("unreadable") from error
        with suppress(OSError):
            os.utime(path, follow_symlinks=False)
        return data

    def _remove_entry(self, name: str) -> bool:
        try:
            self._path_of(name).unlink()
        except OSError:
            return False
        return True

    def _path_of(self, name: str) -> Path:
        """Raises ValueError for a name that could lead out of the directory."""
        if not _ENTRY_NAME.fullmatch(name):
            raise ValueError("not the name of a stored response")
        return self._root / f"{name}.json"

    def _list_entries(self) -> Iterator[tuple[str, int]]:
        """Yield names and sizes in bytes of entries, least recently used first."""
        entries = []
        with os.scandir(self._root) as files:
            for file in files:
                match = _ENTRY_FILE.fullmatch(file.name)
                if match and file.is_file(follow_symlinks=False):
                    status = file.stat(follow_symlinks=False)
                    entries.append((status.st_mtime, match[1], status.st_size))
        return ((name, nbytes) for _, name, nbytes in sorted(entries))

    def _remove_old_temporary_files(self) -> None:
        for path in self._root.iterdir():
            if _TEMPORARY_FILE.fullmatch(path.name):
                with suppress(OSError):
                    if time.time() - path.lstat().st_mtime > _OLD_SECONDS:
                        path.unlink()


def _read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return a regular file's bytes. Raises DamagedResponse for any other or a larger one."""
    with open(path, "rb", opener=lambda path, _: os.open(path, _OPEN_TO_READ)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DamagedResponse("unreadable")
        if status.st_size > max_bytes:
            raise DamagedResponse("too_large")
        return file.read(status.st_size)
