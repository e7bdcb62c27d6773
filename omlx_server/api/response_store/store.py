"""Where responses are kept between requests: bytes by name, bounded in number and size.

What was used longest ago goes first. Any thread may call; each method is one short transaction
under a lock. Names are made by `shelf.py`; a store knows nothing of clients or of JSON.
"""

import threading
from collections import OrderedDict
from typing import Protocol


class Damaged(Exception):
    """What is kept under a name is of no use. `reason` is one word for counters: unreadable,
    too_large, no_json, wrong_fields, another."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a stored response that can't be used: {reason}")
        self.reason = reason


class Store(Protocol):
    @property
    def keeps(self) -> bool:
        """Whether it keeps anything at all."""

    @property
    def memory_bytes(self) -> int:
        """What it takes of the memory."""

    def put(self, name: str, data: bytes) -> None:
        """Keep it; others may go for it. What has no room by itself is not kept."""

    def get(self, name: str) -> bytes | None:
        """The bytes, which count as used now. Raises Damaged for what can't be read."""

    def delete(self, name: str) -> bool:
        """Whether there was something."""


class NoStore:
    """Keeps nothing."""

    keeps = False
    memory_bytes = 0

    def put(self, name: str, data: bytes) -> None:
        return

    def get(self, name: str) -> bytes | None:
        return None

    def delete(self, name: str) -> bool:
        return False


class Bounds:
    """Names and sizes, least recently used first. Not locked: owned by its store."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def fits(self, nbytes: int) -> bool:
        """Whether it could be kept, if nothing else were."""
        return nbytes <= self._max_bytes and self._max_entries > 0

    def add(self, name: str, nbytes: int) -> list[str]:
        """Note it as used now. Returns who must go."""
        self.remove(name)
        self._sizes[name] = nbytes
        self.nbytes += nbytes
        gone = []
        while len(self._sizes) > self._max_entries or self.nbytes > self._max_bytes:
            oldest = next(iter(self._sizes))
            self.remove(oldest)
            gone.append(oldest)
        return gone

    def use(self, name: str) -> None:
        if name in self._sizes:
            self._sizes.move_to_end(name)

    def remove(self, name: str) -> None:
        self.nbytes -= self._sizes.pop(name, 0)


class MemoryStore:
    """Ends with the process."""

    keeps = True

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._bounds = Bounds(max_entries, max_bytes)
        self._data: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        return self._bounds.nbytes

    def put(self, name: str, data: bytes) -> None:
        if not self._bounds.fits(len(data)):
            return
        with self._lock:
            self._data[name] = data
            for gone in self._bounds.add(name, len(data)):
                del self._data[gone]

    def get(self, name: str) -> bytes | None:
        with self._lock:
            self._bounds.use(name)
            return self._data.get(name)

    def delete(self, name: str) -> bool:
        with self._lock:
            self._bounds.remove(name)
            return self._data.pop(name, None) is not None
