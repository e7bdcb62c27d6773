"""The cold tier's index. A child may come before its parent, but goes first. Pure; mlx thread."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from omlx_server.core.blocks.eviction_order import EvictionOrder
from omlx_server.core.blocks.keys import BlockKey, namespace_id
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.blocks.record import Record


@dataclass(slots=True, eq=False)
class ColdEntry:
    """A block or checkpoint in the cold tier. If a scan found it, `record` is None until a read."""

    key: BlockKey
    namespace: str
    nbytes: int
    record: Record | None = None
    used: int = 0
    leases: int = 0


class WriteCause(Enum):
    """Why a block is written, with the share of a day's bytes, which spares the SSD, up to which it
    is."""

    SEEN_ONCE = 0.25  # evicted; few of these are ever asked for again
    SEEN_AGAIN = 0.875  # evicted from a prefix that came twice, or a conversation that went on
    KEPT = 1.0  # the server ends, or all are written when they are made


@dataclass(slots=True)
class ColdReport:
    nbytes: int = 0
    budget: int = 0
    blocks: int = 0
    queued: int = 0
    written: int = 0
    written_bytes: int = 0
    written_today: int = 0  # bytes, also of earlier processes
    daily_bytes: int = 0  # that may be written in a day; 0 for no limit
    read: int = 0
    read_bytes: int = 0
    evicted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


class ColdIndex:
    """Entries within a `budget` in bytes. Without `listed` the store may hold more."""

    def __init__(self, budget: int, pins: Pins | None = None, *, listed: bool = True) -> None:
        self.budget = budget
        self.listed = listed
        self.pins = Pins() if pins is None else pins
        self.nbytes = 0
        self._entries: dict[BlockKey, ColdEntry] = {}
        self._children: dict[BlockKey, dict[BlockKey, None]] = {}  # in insertion order
        self._order = EvictionOrder(self._entries, self._is_evictable)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def entry(self, key: BlockKey) -> ColdEntry | None:
        return self._entries.get(key)

    def children(self, parent: BlockKey) -> Iterator[Record]:
        for key in self._children.get(parent, ()):
            record = self._entries[key].record
            if record is not None:
                yield record

    def entries(self) -> Iterable[ColdEntry]:
        return self._entries.values()

    def chains(self, keys: Iterable[BlockKey]) -> list[ColdEntry]:
        """Return the entries with these keys, and all their descendants."""
        reached, todo = dict[BlockKey, None](), list(keys)
        while todo:
            key = todo.pop()
            if key not in reached:
                reached[key] = None
                todo += self._children.get(key, ())
        return [self._entries[key] for key in reached if key in self._entries]

    def add(self, record: Record, nbytes: int) -> list[ColdEntry] | None:
        """Add an entry. Returns what was evicted for it; None when it does not fit."""
        key = record.key
        if key in self._entries:
            return []
        if nbytes > self.budget:
            return None
        entry = ColdEntry(key, namespace_id(record.namespace), nbytes, record, leases=1)
        self._insert(entry)  # first, so that its parent is no leaf any more
        evicted = self.shrink_to(self.budget)
        entry.leases = 0
        if self.nbytes > self.budget:
            self._remove(entry)
            for other in evicted:  # nothing was deleted yet
                self._insert(other)
            return None
        self.touch(key)
        return evicted

    def load(self, entries: Iterable[ColdEntry]) -> None:
        for entry in entries:
            if entry.key not in self._entries:
                self._insert(entry)
                self.touch(entry.key)

    def discover(self, record: Record) -> None:
        self.load([ColdEntry(record.key, namespace_id(record.namespace), 0, record)])

    def learn(self, record: Record) -> None:
        entry = self._entries.get(record.key)
        if entry is not None and entry.record is None:
            entry.record = record
            self._children.setdefault(record.parent, {})[record.key] = None

    def resize(self, key: BlockKey, nbytes: int) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self.nbytes += nbytes - entry.nbytes
            entry.nbytes = nbytes

    def take(self, key: BlockKey) -> list[ColdEntry]:
        """Remove and return an entry in a list, unless it is leased or pinned."""
        entry = self._entries.get(key)
        if entry is None or entry.leases or key in self.pins:
            return []
        self._remove(entry)
        return [entry]

    def touch(self, key: BlockKey) -> None:
        self._order.touch(key)

    def make_first_to_go(self, namespace: str) -> None:
        for entry in self._entries.values():
            if entry.namespace == namespace:
                self._order.put_first(entry.key)

    def lease(self, key: BlockKey) -> None:
        self._entries[key].leases += 1

    def release(self, key: BlockKey) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.leases:
            entry.leases -= 1
            self._order.note(key)

    def release_pinned(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            self._order.note(key)

    def forget(self, key: BlockKey) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self._remove(entry)

    def shrink_to(self, nbytes: int) -> list[ColdEntry]:
        evicted = []
        while self.nbytes > max(nbytes, 0):
            entry = self._order.next_block()
            if entry is None:
                break
            self._remove(entry)
            evicted.append(entry)
        return evicted

    def _insert(self, entry: ColdEntry) -> None:
        self._entries[entry.key] = entry
        self.nbytes += entry.nbytes
        if entry.record is not None:
            self._children.setdefault(entry.record.parent, {})[entry.key] = None
        self._order.note(entry.key)

    def _remove(self, entry: ColdEntry) -> None:
        del self._entries[entry.key]
        self.nbytes -= entry.nbytes
        if entry.record is None:
            return
        parent = entry.record.parent
        self._children[parent].pop(entry.key, None)
        if not self._children[parent]:
            del self._children[parent]
        self._order.lost_child(parent, entry)

    def _is_evictable(self, entry: ColdEntry) -> bool:
        is_held = entry.leases or entry.key in self.pins
        return not is_held and entry.key not in self._children
