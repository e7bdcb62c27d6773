"""Keeps responses between requests: bytes by name, bounded in number and total bytes.

An entry belongs to the owner that used it last. A full store evicts from the owner with the largest
share, least recently used first. Any thread; each method is one short transaction under a lock.
"""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field


class Damaged(Exception):
    """A stored response is unusable. `reason` labels a counter: unreadable, too_large, no_json,
    wrong_fields, another (its id is another one)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a stored response that can't be used: {reason}")
        self.reason = reason


@dataclass(slots=True)
class _Owned:
    """One owner's entries, least recently used first."""

    sizes: OrderedDict[str, int] = field(default_factory=OrderedDict)
    nbytes: int = 0


class Store(ABC):
    """Decides what stays, by names and sizes; subclasses write, read and remove the bytes. With
    room for no entries it keeps nothing."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._owners: dict[str, bytes] = {}  # the owner of each entry
        self._owned: dict[bytes, _Owned] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def keeps(self) -> bool:
        return self._max_entries > 0

    @property
    def memory_bytes(self) -> int:
        return 0

    def put(self, name: str, data: bytes, owner: bytes = b"") -> None:
        """Store `data` under `name`, evicting others as needed; data larger than the store is
        dropped."""
        if self._fits(len(data)):
            with self._lock:
                if self._write(name, data):
                    self._note(name, len(data), owner)

    def get(self, name: str, owner: bytes = b"") -> bytes | None:
        """Return the bytes under `name`, now used by `owner`; None on a miss. Raises Damaged."""
        with self._lock:
            data = self._read(name)
            if data is not None and name in self._owners:
                self._note(name, len(data), owner)
            return data

    def delete(self, name: str) -> bool:
        """Returns whether there was an entry."""
        with self._lock:
            self._forget(name)
            return self._remove(name)

    def _fits(self, nbytes: int) -> bool:
        return nbytes <= self._max_bytes and self.keeps

    def _note(self, name: str, nbytes: int, owner: bytes = b"") -> None:
        self._forget(name)
        owned = self._owned.setdefault(owner, _Owned())
        owned.sizes[name] = nbytes
        owned.nbytes += nbytes
        self._owners[name] = owner
        self._nbytes += nbytes
        while len(self._owners) > self._max_entries or self._nbytes > self._max_bytes:
            oldest = next(iter(max(self._owned.values(), key=self._share).sizes))
            self._forget(oldest)
            self._remove(oldest)

    def _share(self, owned: _Owned) -> float:
        """Return an owner's part of the entries or of the bytes, whichever is more."""
        return max(len(owned.sizes) / self._max_entries, owned.nbytes / max(1, self._max_bytes))

    def _forget(self, name: str) -> None:
        if name not in self._owners:
            return
        owner = self._owners.pop(name)
        owned = self._owned[owner]
        nbytes = owned.sizes.pop(name)
        owned.nbytes -= nbytes
        self._nbytes -= nbytes
        if not owned.sizes:
            del self._owned[owner]

    @abstractmethod
    def _write(self, name: str, data: bytes) -> bool:
        """Returns whether that worked."""

    @abstractmethod
    def _read(self, name: str) -> bytes | None:
        """Return the bytes, or None. Raises Damaged."""

    @abstractmethod
    def _remove(self, name: str) -> bool:
        """Returns whether there were any."""


class MemoryStore(Store):
    """Keeps responses in memory, until the process ends."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        super().__init__(max_entries, max_bytes)
        self._data: dict[str, bytes] = {}

    @property
    def memory_bytes(self) -> int:
        return self._nbytes

    def _write(self, name: str, data: bytes) -> bool:
        self._data[name] = data
        return True

    def _read(self, name: str) -> bytes | None:
        return self._data.get(name)

    def _remove(self, name: str) -> bool:
        return self._data.pop(name, None) is not None
