"""Decides whether a step fits into memory, and frees memory for it. Pure; mlx thread.

The ladder of relief, in this order; the last four are the scheduler's:

    pool         freed buffers go back to the machine
    checkpoints  superseded checkpoints go
    blocks       the hot tier shrinks, never below its floor
    chunk        a prompt is prefilled in smaller pieces
    pause        nobody new is let in
    preempt      the newest sequence goes back to the queue
    reject       a request that would not fit alone is refused
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.ledger import Ledger, in_words
from omlx_server.core.memory.shape import Decode, PrefillShape, StepShape
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache


class Relief(StrEnum):
    POOL = "pool"
    CHECKPOINTS = "checkpoints"
    BLOCKS = "blocks"
    CHUNK = "chunk"
    PAUSE = "pause"
    PREEMPT = "preempt"
    REJECT = "reject"


_EACH = (Relief.PREEMPT, Relief.REJECT)
# Steps between two drains of the pool; if it is needed sooner, the hot tier makes room for it.
_DRAINS_APART = 50
# Blocks are evicted in portions of 1 / 64 of the memory.
_PORTIONS = 64


@dataclass(frozen=True, slots=True)
class Caches:
    """Live caches of `rows` and `prefills` of this many tokens each. They refer to `in_blocks`
    tokens of blocks of `block_bytes`, of which `idle_bytes` are not in use yet."""

    rows: tuple[int, ...] = ()
    prefills: tuple[int, ...] = ()
    in_blocks: int = 0
    block_bytes: int = 0
    idle_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cuts:
    tokens: int = 0
    checkpoints: int = 0
    refers: bool = False


class Neighbours(Protocol):
    """The other models and all jobs, in bytes. `reserved`: caches when all that was admitted is
    finished."""

    live: int
    reserved: int
    pending: int

    @property
    def count(self) -> int: ...
    @property
    def hot(self) -> int: ...
    @property
    def at_work(self) -> bool: ...

    def make_room(self, nbytes: int, floor: int, *, at_rest: bool) -> int:
        """Evict up to `nbytes` from idle models' hot tiers, then others'. Returns what went."""
        ...


class MemoryGuard:
    """Checks one model's steps against the memory `limit`. Its owner updates `ledger` and
    `features` before each step."""

    def __init__(
        self, limit: int, planner: Planner, neighbours: Neighbours, *, queue: int = 0
    ) -> None:
        self.limit = limit
        self._planner = planner
        self._queue = queue
        self._neighbours = neighbours
        self.ledger = Ledger(limit)
        self.features = 0
        self.reserved = 0
        self.used: Counter[Relief] = Counter()
        self._drains = False
        self._drained_ago = _DRAINS_APART
        self._counted: set[Relief] = set()

    def change(self, limit: int, queue: int) -> None:
        self.limit, self._queue = limit, queue

    def under(self, limit: int, queue: int) -> "MemoryGuard":
        other = copy(self)
        other.change(limit, queue)
        return other

    def begin(self, ledger: Ledger, features: int = 0) -> None:
        self.ledger, self.features = ledger, features
        self._drained_ago = 0 if self._drains else self._drained_ago + 1
        self._drains = False
        self._counted = set()

    def note(self, relief: Relief) -> None:
        """Count a relief: PREEMPT and REJECT each time, others once a step."""
        if relief not in self._counted or relief in _EACH:
            self._counted.add(relief)
            self.used[relief] += 1

    def worst_decode(self, rows: Sequence[int], leaving: Sequence[int] = ()) -> Decode | None:
        return self._planner.worst_decode(rows, leaving)

    @property
    def pauses(self) -> bool:
        return Relief.PAUSE in self._counted

    @property
    def made_room(self) -> bool:
        return Relief.BLOCKS in self._counted

    @property
    def drains_pool(self) -> bool:
        return self._drains

    @property
    def shares(self) -> bool:
        return self._neighbours.at_work

    # -- questions -----------------------------------------------------------------------

    def ever_fits(self, caches: Caches, chunk: int) -> bool:
        """Return whether these caches and a step fit when nothing else runs."""
        return self._fits(caches, self._planner.transient(self._shape(caches, chunk)))

    def explain(self, caches: Caches, chunk: int) -> str:
        live = self._live(caches)
        step = self._planner.transient(self._shape(caches, chunk))
        return (
            f"it needs {in_words(live)} for its caches and {in_words(step)} for a step, "
            f"and the hot tier keeps {in_words(self.floor)}; held now: {self.ledger}"
        )

    def can_reserve(self, caches: Caches, chunk: int, now: float) -> bool:
        step = self._planner.corrected(self._shape(caches, chunk), now) + self.features
        return self._fits(caches, step + max(self._neighbours.live, self._neighbours.reserved))

    def fits_without_others(self, caches: Caches, chunk: int, weights: int) -> bool:
        alone = copy(self)
        alone.ledger = replace(self.ledger, weights=weights)
        return alone.ever_fits(caches, chunk)

    def reserve(self, caches: Caches) -> None:
        """Set the bytes that running sequences will hold when they finish."""
        self.reserved = self._live(caches) + self.features

    def make_room_for(
        self, step: StepShape, after: Caches, cuts: Cuts, cache: PrefixCache, now: float
    ) -> bool:
        """Make room for a step that leaves these caches and cuts. Returns whether it may run."""
        transient = self._planner.corrected(step, now)
        need = self._growth(after, cuts) + transient
        self._relieve(max(need, transient), cache)
        return self._noted(transient, fits=need <= self._room(cache))

    def fits_as_is(
        self, step: StepShape, after: Caches, cuts: Cuts, cache: PrefixCache, now: float
    ) -> bool:
        """Return whether such a step may run without evicting."""
        transient = self._planner.corrected(step, now)
        need = self._growth(after, cuts) + transient + self.ledger.pool
        return self._noted(transient, fits=need <= self._room(cache))

    def bytes_for_read_ahead(self) -> int:
        others, ledger = self._neighbours, self.ledger
        live = max(ledger.live, self.reserved) + max(others.live, others.reserved)
        queue = max(self._queue, ledger.pending + others.pending)
        taken = ledger.weights + live + queue + others.hot + ledger.step + self.floor
        return max(0, self.limit - taken)

    # -- inside --------------------------------------------------------------------------

    def _growth(self, after: Caches, cuts: Cuts) -> int:
        stored = self._planner.stored_bytes(cuts.tokens, cuts.checkpoints, refers=cuts.refers)
        live = self._live(after) + self.features
        return live - after.idle_bytes - self.ledger.live + stored

    def _noted(self, transient: int, *, fits: bool) -> bool:
        if fits:
            self.ledger = replace(self.ledger, step=max(self.ledger.step, transient))
        return fits

    def _fits(self, caches: Caches, transient: int) -> bool:
        least = self.ledger.weights + self._queue + self.floor
        return least + self._live(caches) + transient <= self.limit

    def _live(self, caches: Caches) -> int:
        live = self._planner.live(caches.rows, caches.prefills, caches.in_blocks)
        return live + caches.block_bytes

    @property
    def floor(self) -> int:
        return max(0, self.limit - self.ledger.weights) // 20

    def _room(self, cache: PrefixCache) -> int:
        others, pending = self._neighbours, self.ledger.pending + self._neighbours.pending
        live = self.ledger.live + others.live
        taken = self.ledger.weights + live + max(self._queue, pending)
        return self.limit - taken - cache.index.idle_bytes - others.hot

    def _relieve(self, need: int, cache: PrefixCache) -> None:
        pool = self.ledger.pool
        with_pool = need + pool
        if with_pool > self._room(cache) and self._drained_ago < _DRAINS_APART:
            self._shrink(with_pool - self._room(cache), cache)
        if with_pool > self._room(cache) and pool:
            self._drains = True
            self.note(Relief.POOL)
        if need > self._room(cache):
            self._shrink(need - self._room(cache), cache)

    def _shrink(self, nbytes: int, cache: PrefixCache) -> None:
        """Evict idle models' blocks first, then our own, then others', in portions."""
        nbytes = max(nbytes, max(0, self.limit - self.ledger.weights) // _PORTIONS)
        others = self._neighbours
        floor = self.floor // (1 + others.count)
        evicted = others.make_room(nbytes, floor, at_rest=True)
        freed = cache.eviction.make_room(max(0, nbytes - evicted), floor)
        missing = nbytes - evicted - freed.nbytes
        evicted += others.make_room(max(0, missing), floor, at_rest=False)
        if freed.checkpoints:
            self.note(Relief.CHECKPOINTS)
        if freed.blocks or evicted:
            self.note(Relief.BLOCKS)

    def _shape(self, caches: Caches, chunk: int) -> StepShape:
        longest = max((*caches.rows, *caches.prefills))
        decode = self.worst_decode(caches.rows or (longest,))
        prefill = PrefillShape(1, chunk, max(0, longest - chunk), refers=True)
        return StepShape(decode, (prefill,))
