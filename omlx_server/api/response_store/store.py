"""Keeps responses between requests: bytes by name, bounded in number and total bytes.

An entry belongs to the owner that used it last. A full store evicts from the owner with the largest
share, least recently used first. Any thread; each method is one short transaction under a lock.
"""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field


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
