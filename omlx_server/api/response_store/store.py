"""Keeps responses between requests: bytes by name, bounded in number and total bytes, in
memory or in files.

An entry belongs to the owner that used it last. A full store evicts from the owner with the largest
share, least recently used first. Any thread; each method is one short transaction under a lock.
"""

import logging
import os
import re
import secrets
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_OLD_SECONDS = 3600
# Symbolic links are not followed. Without O_NONBLOCK, opening a FIFO waits for its writer.
_OPEN_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class DamagedResponse(Exception):
    """A stored response is unusable. `reason` labels a counter: unreadable, too_large, no_json,
    wrong_fields, another (it has another id)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a stored response that can't be used: {reason}")
        self.reason = reason


@dataclass(slots=True)
class _OwnerEntries:
    """One owner's entries, least recently used first."""

    sizes: OrderedDict[str, int] = field(default_factory=OrderedDict)
    nbytes: int = 0


class ResponseStore(ABC):
    """Decides what stays, by names and sizes; subclasses write, read and remove the bytes. It is
    disabled with room for no entries."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._owner_of_entry: dict[str, bytes] = {}
        self._entries_of_owner: dict[bytes, _OwnerEntries] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def is_enabled(self) -> bool:
        return self._max_entries > 0

    @property
    def memory_bytes(self) -> int:
        return 0

    def put(self, name: str, data: bytes, owner: bytes = b"") -> None:
        """Store `data` unless it is larger than the store; evict others as needed."""
        if self._may_keep(len(data)):
            with self._lock:
                if self._write_entry(name, data):
                    self._record_use(name, len(data), owner)

    def get(self, name: str, owner: bytes = b"") -> bytes | None:
        """Return the bytes, now used by `owner`; None on a miss. Raises DamagedResponse."""
        with self._lock:
            data = self._read_entry(name)
            if data is not None and name in self._owner_of_entry:
                self._record_use(name, len(data), owner)
            return data

    def delete(self, name: str) -> bool:
        """Returns whether there was an entry."""
        with self._lock:
            self._drop_from_index(name)
            return self._remove_entry(name)

    def _may_keep(self, nbytes: int) -> bool:
        return nbytes <= self._max_bytes and self.is_enabled

    def _record_use(self, name: str, nbytes: int, owner: bytes = b"") -> None:
        """Make an entry the one that `owner` used last, then evict others as needed."""
        self._drop_from_index(name)
        entries = self._entries_of_owner.setdefault(owner, _OwnerEntries())
        entries.sizes[name] = nbytes
        entries.nbytes += nbytes
        self._owner_of_entry[name] = owner
        self._nbytes += nbytes
        while len(self._owner_of_entry) > self._max_entries or self._nbytes > self._max_bytes:
            largest_owner = max(self._entries_of_owner.values(), key=self._share_of_store)
            oldest = next(iter(largest_owner.sizes))
            self._drop_from_index(oldest)
            self._remove_entry(oldest)

    def _share_of_store(self, entries: _OwnerEntries) -> float:
        """Return an owner's share of the entries or of the bytes, whichever is more."""
        return max(len(entries.sizes) / self._max_entries, entries.nbytes / max(1, self._max_bytes))

    def _drop_from_index(self, name: str) -> None:
        if name not in self._owner_of_entry:
            return
        owner = self._owner_of_entry.pop(name)
        entries = self._entries_of_owner[owner]
        nbytes = entries.sizes.pop(name)
        entries.nbytes -= nbytes
        self._nbytes -= nbytes
        if not entries.sizes:
            del self._entries_of_owner[owner]

    @abstractmethod
    def _write_entry(self, name: str, data: bytes) -> bool:
        """Returns whether that worked."""

    @abstractmethod
    def _read_entry(self, name: str) -> bytes | None:
        """Return the bytes, or None. Raises DamagedResponse."""

    @abstractmethod
    def _remove_entry(self, name: str) -> bool:
        """Returns whether there was an entry."""


class MemoryStore(ResponseStore):
    """Keeps responses in memory, until the process ends."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        super().__init__(max_entries, max_bytes)
        self._data: dict[str, bytes] = {}

    @property
    def memory_bytes(self) -> int:
        return self._nbytes

    def _write_entry(self, name: str, data: bytes) -> bool:
        self._data[name] = data
        return True

    def _read_entry(self, name: str) -> bytes | None:
        return self._data.get(name)

    def _remove_entry(self, name: str) -> bool:
        return self._data.pop(name, None) is not None


_log = logging.getLogger(__name__)

_ENTRY_NAME = re.compile(r"[0-9a-f]{64}")
_ENTRY_FILE = re.compile(r"([0-9a-f]{64})\.json")
_TEMPORARY_FILE = re.compile(r"\.tmp-[0-9a-f]{16}")


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
