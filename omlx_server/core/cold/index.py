"""What the cold tier holds, as far as decisions need to know. Pure; owned by the mlx thread.

One index over all namespaces, because they share one budget. A block stays as long as a child of
it is there. A child may come before its parent, which leaves the hot tier later.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from omlx_server.core.blocks.eviction_order import EvictionOrder
from omlx_server.core.blocks.keys import BlockKey, namespace_id
from omlx_server.core.blocks.pins import Pins
from omlx_server.core.blocks.record import Record


@dataclass(slots=True, eq=False)
class Entry:
    """One block or state. `record` is None while it is not known: a scan reads names only."""

    key: BlockKey
    namespace: str
    nbytes: int
    record: Record | None = None
    used: int = 0
    leases: int = 0


@dataclass(slots=True)
class ColdStats:
    """Counters since the start, in blocks unless they say otherwise."""

    written: int = 0
    written_bytes: int = 0
    read: int = 0
    read_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    evicted: int = 0


@dataclass(frozen=True, slots=True)
class ColdReport:
    """A snapshot for metrics. Counters since the start; `queued` in bytes."""

    nbytes: int
    budget: int
    blocks: int
    queued: int
    written: int
    written_bytes: int
    read: int
    read_bytes: int
    evicted: int
    dropped: tuple[tuple[str, int], ...]
    failed: tuple[tuple[str, int], ...]


class ColdIndex:
    """Entries by key, within a byte budget. What `pins` holds is never evicted.

    Without `listed`, more may be there than the index knows: a store that others share.
    """

    def __init__(self, budget: int, pins: Pins | None = None, *, listed: bool = True) -> None:
        self.budget = budget
        self.listed = listed
        self.pins = Pins() if pins is None else pins
        self.nbytes = 0
        self._entries: dict[BlockKey, Entry] = {}
        self._children: dict[BlockKey, dict[BlockKey, None]] = {}  # in the order in which they came
        self._order = EvictionOrder(self._entries, self._evictable)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def entry(self, key: BlockKey) -> Entry | None:
        return self._entries.get(key)

    def children(self, parent: BlockKey) -> Iterator[Record]:
        """Blocks and states right after `parent`, as far as they are known by more than a name."""
        for key in self._children.get(parent, ()):
            record = self._entries[key].record
            if record is not None:
                yield record

    def entries(self) -> Iterable[Entry]:
        return self._entries.values()

    def below(self, keys: Iterable[BlockKey]) -> list[Entry]:
        """All that hangs on these keys, directly or not, as far as it is known by more than a
        name."""
        found, todo = dict[BlockKey, Entry](), list(keys)
        while todo:
            for key in self._children.get(todo.pop(), ()):
                if key not in found:
                    found[key] = self._entries[key]
                    todo.append(key)
        return list(found.values())

    def add(self, record: Record, nbytes: int) -> list[Entry] | None:
        """Make room for an entry and note it as the newest. Returns what has to go for it; None
        when it does not fit, because it is larger than the budget or all others are held."""
        key = record.key
        if key in self._entries:
            return []
        if nbytes > self.budget:
            return None
        entry = Entry(key, namespace_id(record.namespace), nbytes, record, leases=1)
        self._insert(entry)  # before others go: its parent is not a leaf any more
        gone = self.shrink_to(self.budget)
        entry.leases = 0
        if self.nbytes > self.budget:
            self._remove(entry)
            for other in gone:  # nothing was deleted yet
                self._insert(other)
            return None
        self.touch(key)
        return gone

    def load(self, entries: Iterable[Entry]) -> None:
        """Note what a scan has found, the least recently used first."""
        for entry in entries:
            if entry.key not in self._entries:
                self._insert(entry)
                self.touch(entry.key)

    def discover(self, record: Record) -> None:
        """It turned out to be there. Its size is not known before it is read."""
        if record.key not in self._entries:
            self._insert(Entry(record.key, namespace_id(record.namespace), 0, record))
            self.touch(record.key)

    def learn(self, record: Record) -> None:
        """What an entry is that a scan has found."""
        entry = self._entries.get(record.key)
        if entry is not None and entry.record is None:
            entry.record = record
            self._children.setdefault(record.parent, {})[record.key] = None

    def resize(self, key: BlockKey, nbytes: int) -> None:
        """Its size was an estimate until it was written."""
        entry = self._entries.get(key)
        if entry is not None:
            self.nbytes += nbytes - entry.nbytes
            entry.nbytes = nbytes

    def take(self, key: BlockKey) -> list[Entry]:
        """Take one out, if it is there and nobody holds it."""
        entry = self._entries.get(key)
        if entry is None or entry.leases or key in self.pins:
            return []
        self._remove(entry)
        return [entry]

    def touch(self, key: BlockKey) -> None:
        """Note that an entry was used now."""
        self._order.touch(key)

    def make_first_to_go(self, namespace: str) -> None:
        """Nobody can use these blocks any more: their model is gone."""
        for entry in self._entries.values():
            if entry.namespace == namespace:
                self._order.put_first(entry.key)

    def lease(self, key: BlockKey) -> None:
        """Keep an entry while it is read."""
        self._entries[key].leases += 1

    def release(self, key: BlockKey) -> None:
        """Undo one `lease`. The entry may have been forgotten meanwhile."""
        entry = self._entries.get(key)
        if entry is not None and entry.leases:
            entry.leases -= 1
            self._order.note(key)

    def unpinned(self, keys: Iterable[BlockKey]) -> None:
        """These are held by one pin less."""
        for key in keys:
            self._order.note(key)

    def forget(self, key: BlockKey) -> None:
        """It turned out not to be there, or to be unusable."""
        entry = self._entries.get(key)
        if entry is not None:
            self._remove(entry)

    def shrink_to(self, nbytes: int) -> list[Entry]:
        """Take out what goes first until `nbytes` are left or all that is left is held."""
        gone = []
        while self.nbytes > max(nbytes, 0):
            entry = self._order.next_block()
            if entry is None:
                break
            self._remove(entry)
            gone.append(entry)
        return gone

    def check_invariants(self) -> None:
        """Raise AssertionError when the books contradict themselves."""
        assert self.nbytes == sum(entry.nbytes for entry in self._entries.values())
        assert all(entry.leases >= 0 for entry in self._entries.values())
        children: dict[BlockKey, dict[BlockKey, None]] = {}
        for entry in self._entries.values():
            if entry.record is not None:
                children.setdefault(entry.record.parent, {})[entry.key] = None
        assert children == self._children, "a child is forgotten, or remembered for too long"

    # -- inside --------------------------------------------------------------------------

    def _insert(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        self.nbytes += entry.nbytes
        if entry.record is not None:
            self._children.setdefault(entry.record.parent, {})[entry.key] = None
        self._order.note(entry.key)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.key]
        self.nbytes -= entry.nbytes
        if entry.record is None:
            return
        parent = entry.record.parent
        self._children[parent].pop(entry.key, None)
        if not self._children[parent]:
            del self._children[parent]
        self._order.lost_child(parent, entry)

    def _evictable(self, entry: Entry) -> bool:
        held = entry.leases or entry.key in self.pins
        return not held and entry.key not in self._children
