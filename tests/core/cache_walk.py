"""A random walk of a prefix cache, beside a model of it."""

import random
from dataclasses import dataclass, field

from omlx_server.core.blocks.block import Block, CacheLayout, LayerKind, PayloadId, Size, Worth
from omlx_server.core.blocks.lookup import Lookup, PrefixHandle
from omlx_server.core.prefix_cache.eviction import HotBudget
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from tests.core.places import place

BLOCK = 3
GRID = 6
SALTS = (b"", b"", b"", b"", b"a", b"b")
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """A payload of the naive cache: `path` are all tokens of its sequence up to its end."""

    salt: bytes
    path: Tokens
    start: int
    size: Size
    state: bool


@dataclass
class Prefill:
    """A prompt on its way, and how far it is."""

    salt: bytes
    handle: PrefixHandle
    computed: int = 0
    needs: set[PayloadId] = field(default_factory=set)

    @property
    def tokens(self) -> Tokens:
        return self.handle.tokens


class Walk:
    """One random walk; every step changes the cache and the naive one alike."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        kinds = [
            {LayerKind.DELTA},
            {LayerKind.DELTA, LayerKind.WINDOW},
            {LayerKind.DELTA, LayerKind.CHECKPOINT},
        ]
        layout = CacheLayout(frozenset(kinds[seed % 3]), BLOCK, window=4)
        self.cache = PrefixCache(layout, "model", self._budget())
        self.kept: dict[PayloadId, Kept] = {}
        self.prefills: list[Prefill] = []
        self.hits = self.evictions = self.waits = 0

    # -- operations ----------------------------------------------------------------------

    def step(self) -> None:
        what = self.rng.choices(
            [self.enter, self.admit, self.compute, self.leave, self.tail, self.squeeze, self.reset],
            [20, 25, 25, 3, 6, 2, 0.1],
        )[0]
        what()
        self._take_evicted()

    def enter(self) -> None:
        if len(self.prefills) > 5:
            return
        tokens, salt = self._tokens(), self.rng.choice(SALTS)
        marks = [self.rng.randrange(1, 20) for _ in range(self.rng.randrange(3))]
        prefill = Prefill(salt, self.cache.enter(tokens, salt, marks))
        self._note_needs(prefill)
        assert prefill.handle.known == self._naive_stop(prefill)
        self.prefills.append(prefill)

    def admit(self) -> None:
        waiting = [p for p in self.prefills if p.handle.waiting]
        if not waiting:
            return
        prefill = self.rng.choice(waiting)
        if self.cache.must_wait(prefill.handle):
            self.waits += 1
            self._check_wait(prefill)
            return
        stop, depth = self._naive_stop(prefill), self._naive_depth(prefill)
        lookup = self.cache.admit(prefill.handle)
        assert (lookup.cached, lookup.known) == (stop, depth)
        self._check_plan(prefill, lookup)
        self._note_needs(prefill)
        prefill.computed = lookup.cached
        self.hits += bool(lookup.cached)

    def compute(self) -> None:
        """A chunk of an admitted prompt: its cuts are kept, the last one gives the leases back."""
        active = [p for p in self.prefills if not p.handle.waiting]
        if not active:
            return
        prefill = self.rng.choice(active)
        start = prefill.computed
        stop = prefill.handle.next_stop(start, GRID)
        assert start < stop <= len(prefill.tokens) or start == stop == len(prefill.tokens)
        for cut in self.cache.cutter.of_chunk(prefill.handle, start, stop):
            assert start < cut.stop <= stop and cut.start % BLOCK == 0
            self._store(prefill.salt, prefill.tokens[: cut.stop], cut.block, cut.worth)
        prefill.computed = stop
        if stop == len(prefill.tokens):
            self._leave(prefill)

    def leave(self) -> None:
        """Cancelled, in the queue or midway."""
        if self.prefills:
            self._leave(self.rng.choice(self.prefills))

    def tail(self) -> None:
        """A row ends: its blocks came one by one, then its tail."""
        tokens, salt = self._tokens(), self.rng.choice(SALTS)
        for length in range(1, len(tokens) + 1):
            cut = self.cache.cutter.of_row(length)
            if cut is not None:
                self._store(salt, tokens[: cut.stop], cut.block, cut.worth)
        cut = self.cache.cutter.tail_of_row(len(tokens))
        if cut is not None and tokens:
            self._store(salt, tokens, cut.block, cut.worth)

    def squeeze(self) -> None:
        self.cache.budget = self._budget()

    def reset(self) -> None:
        self.cache.reset()

    # -- checks --------------------------------------------------------------------------

    def check(self) -> None:
        index = self.cache.index
        index.check_invariants()
        sizes = [kept.size for kept in self.kept.values()]
        states = [kept.size.nbytes for kept in self.kept.values() if kept.state]
        assert index.nbytes == sum(size.nbytes for size in sizes)
        assert index.buffers == sum(size.buffers for size in sizes)
        assert index.checkpoint_bytes == sum(states)
        assert len(index) + index.checkpoint_count == len(self.kept)
        paths = {(k.salt, k.path) for k in self.kept.values() if not k.state}
        for kept in self.kept.values():
            assert not kept.start or (kept.salt, kept.path[: kept.start]) in paths, "an orphan"

    def check_given_back(self) -> None:
        for prefill in list(self.prefills):
            self._leave(prefill)
        self.cache.reset()
        self._take_evicted()
        assert not self.kept, "something is held by nobody"

    def _check_plan(self, prefill: Prefill, lookup: Lookup) -> None:
        tokens: Tokens = ()
        if lookup.plan is None:
            return
        for piece in lookup.plan.pieces:
            block = self.kept[piece.id]
            assert not block.state and block.salt == prefill.salt
            assert piece.start == block.start == len(tokens)
            tokens += block.path[block.start :][: piece.stop - piece.start]
        assert tokens == prefill.tokens[: lookup.cached], "the tokens of another sequence"
        if lookup.plan.checkpoint is not None:
            state = self.kept[lookup.plan.checkpoint]
            assert state.state and (state.salt, state.path) == (prefill.salt, tokens)

    def _check_wait(self, prefill: Prefill) -> None:
        """Who waits does so for a block that somebody is really computing."""
        depth = self._naive_depth(prefill) // BLOCK * BLOCK
        wanted = prefill.tokens[: depth + BLOCK]
        assert len(wanted) == depth + BLOCK
        assert any(
            other.salt == prefill.salt and other.tokens[: len(wanted)] == wanted
            for other in self.prefills
            if not other.handle.waiting
        )

    def _check_budget(self) -> None:
        """It is kept, or all that could go is held; superseded states have gone before blocks."""
        index, budget = self.cache.index, self.cache.budget
        free_states = [c for b in index.blocks() for c in b.checkpoints.values() if not c.leases]
        assert index.checkpoint_bytes <= budget.checkpoint_bytes or not free_states
        if index.nbytes > budget.nbytes or index.buffers > budget.buffers:
            assert not any(_could_go(block) for block in index.blocks())
            assert not any(c.worth is Worth.SUPERSEDED for c in free_states)

    # -- the naive cache -----------------------------------------------------------------

    def _naive_depth(self, prefill: Prefill) -> int:
        paths = [k.path for k in self.kept.values() if k.salt == prefill.salt and not k.state]
        return max((_shared(path, prefill.tokens) for path in paths), default=0)

    def _naive_stop(self, prefill: Prefill) -> int:
        depth = self._naive_depth(prefill)
        if not self.cache.layout.checkpointed:
            return depth
        return max(
            (
                len(k.path)
                for k in self.kept.values()
                if k.state and k.salt == prefill.salt and k.path == prefill.tokens[: len(k.path)]
            ),
            default=0,
        )

    def _store(self, salt: bytes, tokens: Tokens, block: bool, worth: Worth | None) -> None:
        cache, root = self.cache, self.cache.root(salt)
        if block:
            size = Size(self.rng.randrange(1, 30), self.rng.randrange(1, 3))
            start = (len(tokens) - 1) // BLOCK * BLOCK
            self._keep(
                cache.store_block(place(root, tokens, BLOCK), size),
                Kept(salt, tokens, start, size, False),
            )
        if worth is not None:
            size = Size(self.rng.randrange(20, 60), 1)
            self._keep(
                cache.store_checkpoint(place(root, tokens, BLOCK), size, worth),
                Kept(salt, tokens, 0, size, True),
            )
        self._check_budget()

    def _keep(self, id: PayloadId | None, kept: Kept) -> None:
        if id is None:
            return
        assert id not in self.kept
        self.kept[id] = kept
        self._take_evicted()

    def _take_evicted(self) -> None:
        needed = {id for prefill in self.prefills for id in prefill.needs}
        for id in self.cache.eviction.take_evicted():
            assert id not in needed, "a leased payload was evicted"
            del self.kept[id]
            self.evictions += 1

    def _note_needs(self, prefill: Prefill) -> None:
        """What must stay until it leaves: the blocks on its way, and the state that it starts
        from."""
        match = self.cache.index.match(prefill.handle.root, prefill.tokens)
        path = [*match.blocks, *([match.partial] if match.partial else [])]
        prefill.needs = {block.id for block in path}
        stop = self._naive_stop(prefill)
        if self.cache.layout.checkpointed and stop:
            states = [held.id for held in prefill.handle.leased if not isinstance(held, Block)]
            assert [len(self.kept[id].path) for id in states] == [stop]
            prefill.needs |= set(states)

    def _leave(self, prefill: Prefill) -> None:
        self.cache.leave(prefill.handle)
        self.prefills.remove(prefill)

    def _tokens(self) -> Tokens:
        """Often what goes on from something that is known."""
        fresh = tuple(self.rng.randrange(2) for _ in range(self.rng.choice([0, 1, 2, 5, 9, 20])))
        known = [kept.path for kept in self.kept.values()]
        queued = [prefill.tokens for prefill in self.prefills]
        for sequences in (known, queued):
            if sequences and self.rng.random() < 0.4:
                sequence = self.rng.choice(sequences)
                return sequence[: self.rng.randrange(len(sequence) + 1)] + fresh[:6]
        return fresh

    def _budget(self) -> HotBudget:
        room = self.rng.choice([0, 100, 300, 1000, 2000])
        return HotBudget(
            nbytes=room,
            checkpoint_bytes=self.rng.choice([0, room // 4, room]),
            buffers=self.rng.choice([5, 40, 1000]),
            lattice_start=4,
        )


def _could_go(block: Block) -> bool:
    held = block.leases or any(c.leases for c in block.checkpoints.values())
    return not block.children and not held


def _shared(a: Tokens, b: Tokens) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
