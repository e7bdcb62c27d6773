"""Chains of blocks in a cold tier's index."""

import random
from dataclasses import dataclass

from omlx_server.core.blocks.keys import BlockKey, namespace_id, root_key
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdEntry, ColdIndex

ROOT = root_key("model", b"")


def record(parent: Record | None, *tokens: int, part: RecordKind = RecordKind.BLOCK) -> Record:
    return Record(
        "model", parent.key if parent else ROOT, parent.stop if parent else 0, tokens, part
    )


def check_cold_index(index: ColdIndex) -> None:
    """The sums and children are those of the entries."""
    entries = index._entries.values()
    assert index.nbytes == sum(entry.nbytes for entry in entries)
    assert all(entry.leases >= 0 for entry in entries)
    children: dict[BlockKey, dict[BlockKey, None]] = {}
    for entry in entries:
        if entry.record is not None:
            children.setdefault(entry.record.parent, {})[entry.key] = None
    assert children == index._children, "a child is forgotten, or remembered for too long"


# -- at random ---------------------------------------------------------------------------


@dataclass
class Seen:
    """An entry as the naive eviction needs it."""

    used: int
    nbytes: int
    parent: BlockKey | None
    leases: int


class Walk:
    """Random operations over a small forest of records."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.index = ColdIndex(self._budget())
        self.records = list(self._forest())
        self.sizes: dict[BlockKey, int] = {}
        self.known: set[BlockKey] = set()
        self.leases: dict[BlockKey, int] = {}
        self.evicted = self.refused = 0

    def step(self) -> None:
        operations = [self.add, self.touch, self.lease, self.release, self.forget, self.take]
        operations += [self.resize, self.restart, self.learn, self.squeeze, self.model_gone]
        self.rng.choices(operations, [40, 15, 8, 10, 2, 2, 5, 0.2, 10, 2, 0.3])[0]()
        self.check()

    def add(self) -> None:
        record, nbytes = self.rng.choice(self.records), self.rng.randrange(40)
        known = record.key in self.index
        expected = [] if known else self._naive_add(record, nbytes)
        gone = self.index.add(record, nbytes)
        assert (None if gone is None else [entry.key for entry in gone]) == expected
        if gone is None:
            self.refused += 1
        elif not known:
            self._gone(gone)
            self.sizes[record.key] = nbytes
            self.known.add(record.key)
            assert self.index.nbytes <= self.index.budget, "an entry came that has no room"

    def touch(self) -> None:
        key = self._any()
        self.index.touch(key)
        entry = self.index.entry(key)
        assert entry is None or entry.used == max(e.used for e in self.index.entries())

    def lease(self) -> None:
        key = self._any()
        if key in self.index and sum(self.leases.values()) < 4:
            self.index.lease(key)
            self.leases[key] = self.leases.get(key, 0) + 1

    def release(self) -> None:
        key = self.rng.choice(list(self.leases) or [self._any()])
        self.index.release(key)
        if self.leases.get(key):
            self.leases[key] -= 1
        if not self.leases.get(key):
            self.leases.pop(key, None)

    def forget(self) -> None:
        key = self._any()
        self.index.forget(key)
        self._drop(key)

    def take(self) -> None:
        key = self._any()
        there = key in self.index and not self.leases.get(key)
        assert [entry.key for entry in self.index.take(key)] == [key] * there
        if there:
            self._drop(key)

    def resize(self) -> None:
        key, nbytes = self._any(), self.rng.randrange(40)
        self.index.resize(key, nbytes)
        if key in self.sizes:
            self.sizes[key] = nbytes
        self._shrink(self.index.budget)

    def restart(self) -> None:
        """A scan of what is there, by name only; some of it was written before the scan came."""
        found = [ColdEntry(e.key, e.namespace, e.nbytes) for e in self.index.entries()]
        self.rng.shuffle(found)
        self.index = ColdIndex(self.index.budget)
        self.sizes, self.known, self.leases = {}, set(), {}
        for _ in range(self.rng.randrange(3)):
            self.add()
        self.sizes = {entry.key: entry.nbytes for entry in found} | self.sizes
        self.index.load(found)
        self._shrink(self.index.budget)

    def learn(self) -> None:
        record = self.rng.choice(self.records)
        self.index.learn(record)
        if record.key in self.sizes:
            self.known.add(record.key)

    def squeeze(self) -> None:
        self.index.budget = self._budget()
        self._shrink(self.index.budget)

    def model_gone(self) -> None:
        self.index.make_first_to_go(namespace_id("gone"))

    # -- checks --------------------------------------------------------------------------

    def check(self) -> None:
        check_cold_index(self.index)
        entries = list(self.index.entries())
        assert {entry.key: entry.nbytes for entry in entries} == self.sizes
        assert {entry.key for entry in entries if entry.record} == self.known
        assert {entry.key: entry.leases for entry in entries if entry.leases} == self.leases

    def _shrink(self, nbytes: int) -> None:
        seen = self._seen()
        expected = _naive_shrink(seen, nbytes)
        gone = self.index.shrink_to(nbytes)
        assert [entry.key for entry in gone] == expected
        self._gone(gone)

    def _gone(self, gone: list[ColdEntry]) -> None:
        """Of a sequence, the end goes first."""
        self.evicted += len(gone)
        for entry in gone:
            self._drop(entry.key)
            assert not entry.leases, "a leased entry went"
        parents = {r.parent for r in self.records if r.key in self.known}
        assert not parents & {entry.key for entry in gone}, "a parent went before its child"

    def _drop(self, key: BlockKey) -> None:
        self.sizes.pop(key, None)
        self.leases.pop(key, None)
        self.known.discard(key)

    def _naive_add(self, record: Record, nbytes: int) -> list[BlockKey] | None:
        seen = self._seen()
        seen[record.key] = Seen(0, nbytes, record.parent, 1)
        gone = _naive_shrink(seen, self.index.budget)
        left = sum(each.nbytes for each in seen.values())
        return gone if left <= self.index.budget else None

    def _seen(self) -> dict[BlockKey, Seen]:
        return {
            e.key: Seen(e.used, e.nbytes, e.record.parent if e.record else None, e.leases)
            for e in self.index.entries()
        }

    def _any(self) -> BlockKey:
        return self.rng.choice(self.records).key

    def _budget(self) -> int:
        return self.rng.choice([0, 30, 100, 300, 1000])

    def _forest(self) -> list[Record]:
        records: list[Record] = []
        for number in range(60):
            above = self.rng.choice([None, *records[-20:]])
            if above is not None and above.part is RecordKind.CHECKPOINT:
                above = None
            namespace = above.namespace if above else self.rng.choice(["model", "gone"])
            parent = above.key if above else root_key(namespace, b"")
            part = RecordKind.CHECKPOINT if self.rng.random() < 0.2 else RecordKind.BLOCK
            start = above.stop if above else 0
            records.append(Record(namespace, parent, start, (number,), part))
        return records


def _naive_shrink(seen: dict[BlockKey, Seen], nbytes: int) -> list[BlockKey]:
    """Take out leaves one by one, looking at all of them each time."""
    gone = []
    while sum(each.nbytes for each in seen.values()) > nbytes:
        parents = {each.parent for each in seen.values()}
        leaves = [(e.used, key) for key, e in seen.items() if not e.leases and key not in parents]
        if not leaves:
            break
        _, key = min(leaves)
        entry = seen.pop(key)
        gone.append(key)
        if entry.parent in seen:
            above = seen[entry.parent]
            above.used = max(above.used, entry.used)
    return gone
