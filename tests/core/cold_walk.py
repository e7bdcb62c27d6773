"""A random walk of a cache with a cold tier."""

from dataclasses import dataclass, replace

from omlx_server.core.blocks.block import CacheLayout, LayerKind
from omlx_server.core.blocks.keys import BlockKey, chain
from omlx_server.core.blocks.record import Record, RecordKind
from omlx_server.core.cold.index import ColdEntry, ColdIndex
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Miss
from tests.core.cache_walk import BLOCK, Kept, Prefill, Tokens, Walk
from tests.core.cold.chains import check_cold_index

GAIN = 16  # what saves less is not read
LAYOUTS = [
    frozenset({LayerKind.DELTA}),
    frozenset({LayerKind.DELTA, LayerKind.WINDOW}),
    frozenset({LayerKind.DELTA, LayerKind.CHECKPOINT}),
    frozenset({LayerKind.CHECKPOINT}),
]
FAILURES = ("timeout", "damaged", "gone")


@dataclass(frozen=True)
class Stored:
    """A file of the pretend medium."""

    record: Record
    kept: Kept


@dataclass
class Hope:
    """What a prompt that waits for reads must get, unless one of them went wrong."""

    goal: int
    spoilt: bool = False


class ColdWalk(Walk):
    """One random walk over two tiers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.in_order = seed // 4 % 2 == 0
        self.layout = CacheLayout(LAYOUTS[seed % 4], BLOCK, window=4)
        self.stems = [tuple(self.rng.choices((0, 1), k=45)) for _ in range(2)]
        self.medium: dict[BlockKey, Stored] = {}
        self.cold = ColdIndex(self._cold_budget())
        self.reads: dict[BlockKey, Record] = {}
        self.held: dict[BlockKey, int] = {}  # leases of reads under way
        self.hopes: dict[int, Hope] = {}
        self.unlearned: list[BlockKey] = []
        self.stale: set[BlockKey] = set()  # reads for a cache that is no more
        self.cache = self._fresh_cache()
        self.early = self.recalled = self.fulfilled = self.demoted = self.failed = self.gone = 0

    # -- operations ----------------------------------------------------------------------

    def step(self) -> None:
        operations = [self.enter, self.admit, self.compute, self.leave, self.tail, self.squeeze]
        operations += [self.reset, self.deliver, self.lose, self.learn, self.squeeze_cold]
        operations += [self.flood, self.restart_instance, self.restart_process]
        weights = [20, 20, 80, 1, 4, 4, 0.1, 40, 0.3, 10, 0.2, 10, 0.3, 0.3]
        self.rng.choices(operations, weights)[0]()
        self._take_evicted()
        self._take_reads()

    def enter(self) -> None:
        queued = len(self.prefills)
        super().enter()
        if len(self.prefills) == queued:
            return
        prefill = self.prefills[-1]
        handle = prefill.handle
        goal = self._naive_goal(prefill)
        ample = handle.room >= self.cold.nbytes
        assert not handle.reading or goal - handle.known >= GAIN, "it reads what it cannot use"
        assert not ample or bool(handle.reading) == (goal - handle.known >= GAIN)
        if handle.reading:
            self.recalled += 1
            nbytes = sum(self._entry(key).nbytes for key in handle.reading)
            assert nbytes <= handle.room
            self.hopes[id(prefill)] = Hope(goal if ample else 0)

    def admit(self) -> None:
        everybody, reading = self.prefills, [p for p in self.prefills if p.handle.reading]
        assert all(p.handle.waiting and self.cache.must_wait(p.handle) for p in reading)
        self.prefills = [p for p in everybody if not p.handle.reading]
        super().admit()
        self.prefills = everybody
        for prefill in everybody:
            hope = self.hopes.get(id(prefill))
            if hope is None or prefill.handle.waiting:
                continue
            del self.hopes[id(prefill)]
            if not hope.spoilt:
                assert prefill.computed >= hope.goal, "it waited for blocks and did not get them"
                self.fulfilled += bool(hope.goal)

    def deliver(self) -> None:
        """A read has come to an end, well or not."""
        if not self.reads:
            return
        keys = list(self.reads)
        key = keys[0] if self.in_order else self.rng.choice(keys)
        self._end_read(key, fails=self.rng.random() < 0.02)

    def lose(self) -> None:
        """A file is gone; the index learns of it by a read, or never."""
        if self.medium:
            key = self.rng.choice(list(self.medium))
            if self.rng.random() < 0.5:
                self.cold.forget(key)
                self.held.pop(key, None)
                del self.medium[key]
            elif key in self.reads:
                self._end_read(key, fails=True)

    def flood(self) -> None:
        """Others push out of the hot tier what is not held; then there is room again."""
        self.cache.budget = replace(self.cache.budget, nbytes=0)
        self._store(b"others", (0,), True, None)
        self._take_evicted()
        self.cache.budget = self._budget()

    def learn(self) -> None:
        """Some more headers were read since the start; a few of files that are gone by now."""
        for _ in range(min(len(self.unlearned), 5)):
            stored = self.medium.get(self.unlearned.pop())
            if stored is not None:
                self.cold.learn(stored.record)

    def squeeze_cold(self) -> None:
        self.cold.budget = self._cold_budget()
        self._delete(self.cold.shrink_to(self.cold.budget))

    def restart_instance(self) -> None:
        """All of the memory is lost; reads under way come to nobody."""
        self.prefills, self.kept, self.hopes = [], {}, {}
        self.stale = set(self.reads)
        self.cache = self._fresh_cache()

    def restart_process(self) -> None:
        """Only names and sizes are known, until headers have been read."""
        if self.rng.random() < 0.7:  # it had the time to write what it held
            for held in self.cache.index.by_depth():
                self._write(self.cache.record(held), self.kept[held.id])
        self.reads, self.held = {}, {}
        entries = [ColdEntry(e.key, e.namespace, e.nbytes) for e in self.cold.entries()]
        self.rng.shuffle(entries)
        self.cold = ColdIndex(self._cold_budget())
        self.cold.load(entries)
        self._delete(self.cold.shrink_to(self.cold.budget))
        self.unlearned = list(self.medium)
        self.restart_instance()

    # -- checks --------------------------------------------------------------------------

    def check(self) -> None:
        super().check()
        check_cold_index(self.cold)
        assert set(self.medium) == {entry.key for entry in self.cold.entries()}
        leases = {entry.key: entry.leases for entry in self.cold.entries() if entry.leases}
        assert leases == self.held
        for prefill in self.prefills:
            assert prefill.handle.reading <= set(self.reads), "it waits for what nobody reads"
            assert prefill.handle.waiting or not prefill.handle.reading

    def check_end(self) -> None:
        """Every read ends; nobody waits then but for those who compute; nothing stays held."""
        while self.reads:
            self._end_read(next(iter(self.reads)), fails=self.rng.random() < 0.5)
            self._take_evicted()
            self._take_reads()
        self.check()
        computing = any(not prefill.handle.waiting for prefill in self.prefills)
        for prefill in self.prefills:
            assert computing or not self.cache.must_wait(prefill.handle)
        while self.prefills:
            self._leave(self.prefills[0])
        for block in self.cache.index.blocks():
            assert not block.leases and not any(c.leases for c in block.checkpoints.values())
        self.check_given_back()
        self._delete(self.cold.shrink_to(0))
        assert not any(entry.nbytes for entry in self.cold.entries())  # but what takes no room
        assert set(self.medium) == {entry.key for entry in self.cold.entries()}

    # -- the pretend medium --------------------------------------------------------------

    def _take_evicted(self) -> None:
        for id, record, _ in self.cache.take_demoted():
            self._write(record, self.kept[id])
        super()._take_evicted()

    def _write(self, record: Record, kept: Kept) -> None:
        self._check_record(record, kept)
        self.demoted += 1
        key = record.key
        if key in self.cold:
            assert self.medium[key].kept.path == kept.path
            self.cold.touch(key)
            return
        if self.rng.random() < 0.05:
            return  # its queue is full
        gone = self.cold.add(record, kept.size.nbytes)
        if gone is None:
            return
        assert self.cold.nbytes <= self.cold.budget
        self.medium[key] = Stored(record, kept)
        self._delete(gone)
        if self.rng.random() < 0.02:  # the disk is full
            self.cold.forget(key)
            del self.medium[key]
        else:
            self.cold.resize(key, kept.size.nbytes + self.rng.randrange(-1, 3))
            self._delete(self.cold.shrink_to(self.cold.budget))

    def _check_record(self, record: Record, kept: Kept) -> None:
        """It says where the payload belongs, and no more."""
        assert record.namespace == self.cache.namespace
        assert kept.path[record.start :] == record.tokens
        assert (record.part is RecordKind.CHECKPOINT) == kept.state
        assert record.parent == self._parent(kept.salt, kept.path, record.start)

    def _delete(self, gone: list[ColdEntry]) -> None:
        for entry in gone:
            assert not entry.leases and entry.key not in self.held, "it went while it was read"
            self.medium.pop(entry.key)
            self.gone += 1
        parents = {e.record.parent for e in self.cold.entries() if e.record}
        assert not parents & {entry.key for entry in gone}, "a parent went before its child"

    def _take_reads(self) -> None:
        for record in self.cache.read_ahead.waits.take_reads():
            key = record.key
            assert key not in self.reads or key in self.stale, "it is read twice"
            self.stale.discard(key)
            self.reads[key] = record
            if key in self.cold and key not in self.held:
                self.cold.lease(key)
                self.held[key] = 1

    def _end_read(self, key: BlockKey, *, fails: bool) -> None:
        record = self.reads.pop(key)
        self.stale.discard(key)
        if self.held.pop(key, None):
            self.cold.release(key)
        readers = self._readers(key)
        stored = self.medium.get(key)
        if fails or stored is None:
            reason = self.rng.choice(FAILURES) if stored else "gone"
            self._spoil(readers)
            if reason != "timeout":
                self.cold.forget(key)
                self.medium.pop(key, None)
            self.cache.give_up(key, reason)
            missed = Miss.LATE if reason == "timeout" else Miss.UNREADABLE
            assert all(not p.handle.reading and p.handle.missed is missed for p in readers)
            self.failed += 1
            return
        assert (record.parent, record.tokens) == (stored.record.parent, stored.record.tokens)
        self.cold.touch(key)
        self._promote(stored, readers)

    def _promote(self, stored: Stored, readers: list[Prefill]) -> None:
        kept = stored.kept
        size = replace(kept.size, nbytes=kept.size.nbytes + self.rng.randrange(2))
        id = self.cache.promote(stored.record, size)
        again = self._readers(stored.record.key)
        assert id is None or not again
        for prefill in readers:
            if id is not None:
                prefill.needs.add(id)
                assert kept.path == prefill.tokens[: stored.record.start] + stored.record.tokens
                assert kept.salt == prefill.salt
        if id is None:
            done = [prefill for prefill in readers if prefill not in again]
            lost = any(not self._hope(prefill).spoilt for prefill in done)
            assert not lost or self._is_covered(kept), "it fits nowhere"
            self._spoil(done)
            self.early += bool(again)
            return
        assert readers, "it is kept for nobody"
        self._keep(id, replace(kept, size=size))

    def _is_covered(self, kept: Kept) -> bool:
        """Whether somebody has computed it meanwhile."""
        alike = (k for k in self.kept.values() if (k.salt, k.state) == (kept.salt, kept.state))
        if kept.state:
            return any(k.path == kept.path for k in alike)
        return any(k.path[: len(kept.path)] == kept.path for k in alike)

    def _hope(self, prefill: Prefill) -> Hope:
        return self.hopes[id(prefill)]

    def _readers(self, key: BlockKey) -> list[Prefill]:
        return [prefill for prefill in self.prefills if key in prefill.handle.reading]

    def _spoil(self, readers: list[Prefill]) -> None:
        for prefill in readers:
            self._hope(prefill).spoilt = True

    # -- what must hold ------------------------------------------------------------------

    def _naive_goal(self, prefill: Prefill) -> int:
        """Up to where this prompt could be restored with all that both tiers hold."""
        tokens, salt = prefill.tokens, prefill.salt
        depth = self._naive_depth(prefill)
        at = depth // BLOCK * BLOCK
        while at + BLOCK <= len(tokens) and self._key(prefill, at + BLOCK) in self.cold:
            at += BLOCK
        parent = self._parent(salt, tokens, at)
        reach = max(depth, at, *(at + n for n in self._shared_cold(parent, tokens[at:])))
        if not self.layout.checkpointed:
            return reach
        known = [e.record for e in self.cold.entries() if e.record]
        states = (
            record.stop
            for record in known
            if record.part is RecordKind.CHECKPOINT
            and record.stop <= reach
            and tokens[record.start : record.stop] == record.tokens
            and record.parent == self._parent(salt, tokens, record.start)
        )
        return max(states, default=0)

    def _shared_cold(self, parent: BlockKey, tokens: Tokens) -> list[int]:
        """How much of `tokens` each known block after `parent` begins with."""
        known = [e.record for e in self.cold.entries() if e.record]
        owns = [r.tokens for r in known if r.parent == parent and r.part is RecordKind.BLOCK]
        return [0] + [max(n for n in range(len(own) + 1) if own[:n] == tokens[:n]) for own in owns]

    def _key(self, prefill: Prefill, stop: int) -> BlockKey:
        return self._parent(prefill.salt, prefill.tokens, stop)

    def _parent(self, salt: bytes, tokens: Tokens, stop: int) -> BlockKey:
        """The key of the full blocks of tokens[:stop]."""
        root = self.cache.root(salt)
        return [root, *chain(root, tokens[:stop], BLOCK)][stop // BLOCK]

    def _entry(self, key: BlockKey) -> ColdEntry:
        entry = self.cold.entry(key)
        assert entry is not None, "it reads what is not there"
        return entry

    # -- what the base walk asks for -----------------------------------------------------

    def _leave(self, prefill: Prefill) -> None:
        super()._leave(prefill)
        assert not prefill.handle.reading and not prefill.handle.leased
        self.hopes.pop(id(prefill), None)

    def _tokens(self) -> Tokens:
        """Mostly a part of one of two long sequences, and something of its own."""
        if self.rng.random() < 0.3:
            return super()._tokens()
        stem = self.rng.choice(self.stems)
        own = self.rng.choices((0, 1), k=self.rng.choice([0, 1, 4, 9]))
        return (*stem[: self.rng.randrange(12, len(stem) + 1)], *own)

    def _budget(self) -> HotBudget:
        room = self.rng.choice([0, 200, 1500, 8000, 8000])
        return HotBudget(
            nbytes=room,
            checkpoint_bytes=self.rng.choice([0, room // 4, room]),
            buffers=self.rng.choice([5, 40, 1000]),
            lattice_start=4,
        )

    def _cold_budget(self) -> int:
        return self.rng.choice([0, 800, 2000, 2500, 3000])

    def _fresh_cache(self) -> PrefixCache:
        cache = PrefixCache(self.layout, "model", self._budget(), self.cold)
        spare = self.rng.choice([0, 200, 1500, 8000, 8000])
        cache.read_ahead.most_bytes = lambda: spare
        return cache
