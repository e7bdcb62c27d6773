"""Keeps responses between requests: bytes by name, bounded in number and in total bytes.

Each entry belongs to the owner that used it last. A full store evicts from the owner that holds
most of it, the least recently used entry first; so an owner keeps its entries while they are fewer
than its share, whatever others put. Any thread may call a store; each method is one short
transaction under a lock. `shelf.py` makes the names and owners; a store knows nothing of JSON.
"""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field


class Damaged(Exception):
    """The entry of a name can't be used. `reason` is one word, which labels a counter: unreadable,
    too_large, no_json, wrong_fields, another (the response has another id)."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a stored response that can't be used: {reason}")
        self.reason = reason


@dataclass(slots=True)
class _Owned:
    """The sizes of one owner's entries, the least recently used first, and their sum."""

    sizes: OrderedDict[str, int] = field(default_factory=OrderedDict)
    nbytes: int = 0


class Store(ABC):
    """Decides what stays, by names and sizes; subclasses write, read and remove the bytes. `keeps`:
    whether this kind of store keeps anything at all."""

    keeps = True

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._owners: dict[str, bytes] = {}  # of each entry
        self._owned: dict[bytes, _Owned] = {}
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        """The bytes of memory that the entries take."""
        return 0

    def put(self, name: str, data: bytes, owner: bytes = b"") -> None:
        """Keep `data` under `name`; entries are evicted for it if need be. Data that is larger than
        the whole store is not kept."""
        if self._fits(len(data)):
            with self._lock:
                if self._write(name, data):
                    self._note(name, len(data), owner)

    def get(self, name: str, owner: bytes = b"") -> bytes | None:
        """The bytes under `name`, which count as used by `owner` now; None where there are none.
        Raises Damaged where they can't be read."""
        with self._lock:
            data = self._read(name)
            if data is not None and name in self._owners:
                self._note(name, len(data), owner)
            return data

    def delete(self, name: str) -> bool:
        """Delete the entry of `name`. Returns whether there was one."""
        with self._lock:
            self._forget(name)
            return self._remove(name)

    def _fits(self, nbytes: int) -> bool:
        """Whether `nbytes` bytes fit into an empty store."""
        return nbytes <= self._max_bytes and self._max_entries > 0

    def _note(self, name: str, nbytes: int, owner: bytes = b"") -> None:
        """Note an entry that was written or read, as the one used last. Evict others until the
        store is within its bounds."""
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
        """What part of the store an owner holds, by entries or by bytes, whichever is more."""
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
        """Write the bytes. Returns whether they were written."""

    @abstractmethod
    def _read(self, name: str) -> bytes | None:
        """Read the bytes; None where there are none. Raises Damaged where they can't be read."""

    @abstractmethod
    def _remove(self, name: str) -> bool:
        """Remove the bytes. Returns whether there were any."""


class MemoryStore(Store):
    """Keeps responses in memory; they are gone when the process ends."""

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


class NoStore(MemoryStore):
    """Keeps nothing."""

    keeps = False

    def __init__(self) -> None:
        super().__init__(max_entries=0, max_bytes=0)
