"""Decides whether a step fits into memory, and frees memory for it. Pure; mlx thread."""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from omlx_server.core.memory.estimate import Planner
from omlx_server.core.memory.kv import Decode, PrefillShape, StepShape
from omlx_server.core.memory.ledger import Ledger, hot_floor_bytes, in_words
from omlx_server.core.memory.pressure import NO_PRESSURE
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache


class Relief(StrEnum):
    """The ladder of relief, in this order; the last four are the scheduler's."""

    POOL = "pool"  # freed buffers go back to the machine
    CHECKPOINTS = "checkpoints"  # superseded checkpoints go
    BLOCKS = "blocks"  # the hot tier shrinks, never below its floor
    CHUNK = "chunk"  # a prompt is prefilled in smaller pieces
    PAUSE = "pause"  # nobody new is let in
    PREEMPT = "preempt"  # the newest sequence goes back to the queue
    REJECT = "reject"  # a request that would not fit alone is refused


_COUNTED_EACH_TIME = (Relief.PREEMPT, Relief.REJECT)
# Two drains of the pool are so far apart; if it is needed sooner, the hot tier makes room for it.
_STEPS_BETWEEN_DRAINS = 50
# Blocks are evicted in portions of 1 / 64 of the memory.
_PORTIONS = 64


@dataclass(frozen=True, slots=True)
class Caches:
    """The tokens of live caches, by row and by prefill."""

    rows: tuple[int, ...] = ()
    prefills: tuple[int, ...] = ()
    in_blocks: int = 0  # tokens to which they only refer
    block_bytes: int = 0  # of the blocks that have these
    idle_bytes: int = 0  # of those not in use yet


@dataclass(frozen=True, slots=True)
class Cuts:
    """Tokens and checkpoints that a step keeps. `refers`: blocks share the bytes of caches."""

    tokens: int = 0
    checkpoints: int = 0
    refers: bool = False


class Neighbours(Protocol):
    """The other models and all jobs, in bytes."""

    live: int
    reserved: int  # caches when all that was admitted is finished
    pending: int  # on the way to the cold tier

    @property
    def count(self) -> int: ...
    @property
    def hot(self) -> int: ...
    @property
    def at_work(self) -> bool: ...
    @property
    def are_computing(self) -> bool: ...

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
        self._queue = queue  # bytes kept free for what goes to the cold tier
        self._neighbours = neighbours
        self.ledger = Ledger(limit)
        self.features = 0  # bytes of images' features
        self.pressure = NO_PRESSURE  # on the machine's memory
        self.reserved = 0  # bytes of caches when all that runs is finished
        self.used: Counter[Relief] = Counter()
        self.drains_pool = False
        self._steps_since_drain = _STEPS_BETWEEN_DRAINS
        self._counted_this_step: set[Relief] = set()

    def change(self, limit: int, queue: int) -> None:
        self.limit, self._queue = limit, queue

    def under(self, limit: int, queue: int) -> "MemoryGuard":
        other = copy(self)
        other.change(limit, queue)
        return other

    def begin(self, ledger: Ledger, features: int = 0) -> None:
        self.ledger, self.features = ledger, features
        self._steps_since_drain = 0 if self.drains_pool else self._steps_since_drain + 1
        self.drains_pool = False
        self._counted_this_step = set()

    def note(self, relief: Relief) -> None:
        """Count a relief: PREEMPT and REJECT each time, others once a step."""
        if relief not in self._counted_this_step or relief in _COUNTED_EACH_TIME:
            self._counted_this_step.add(relief)
            self.used[relief] += 1

    def worst_decode(self, rows: Sequence[int], leaving: Sequence[int] = ()) -> Decode | None:
        return self._planner.worst_decode(rows, leaving)

    @property
    def pauses(self) -> bool:
        return Relief.PAUSE in self._counted_this_step

    @property
    def made_room(self) -> bool:
        return Relief.BLOCKS in self._counted_this_step

    @property
    def shares_memory(self) -> bool:
        """Whether other models or jobs are at work."""
        return self._neighbours.at_work

    def ever_fits(self, caches: Caches, chunk: int) -> bool:
        """Return whether these caches and a step fit when nothing else runs."""
        transient = self._planner.transient(self._worst_step(caches, chunk))
        return self._fit_under_limit(caches, transient)

    def explain(self, caches: Caches, chunk: int) -> str:
        live = self._live_bytes(caches)
        step = self._planner.transient(self._worst_step(caches, chunk))
        return (
            f"it needs {in_words(live)} for its caches and {in_words(step)} for a step, "
            f"and the hot tier keeps {in_words(self.floor)}; held now: {self.ledger}"
        )

    @property
    def others_compute(self) -> bool:
        """Whether other models compute answers."""
        return self._neighbours.are_computing

    def can_reserve(
        self, caches: Caches, chunk: int, now: float, *, spares_machine: bool = False
    ) -> bool:
        """Return whether these caches and a step fit beside all that others will hold.
        `spares_machine`: without what the pressure on the machine has taken."""
        step = self._planner.corrected(self._worst_step(caches, chunk), now) + self.features
        others = max(self._neighbours.live, self._neighbours.reserved)
        taken = self.pressure.taken if spares_machine else 0
        return self._fit_under_limit(caches, step + others + taken)

    def fits_in_what_is_left(self, caches: Caches, chunk: int) -> bool:
        """Return whether these caches and a step fit into half of the machine's available memory,
        and what hot tiers can free."""
        available = self.pressure.available
        if available is None:
            return True
        hot = self.ledger.blocks + self.ledger.checkpoints + self._neighbours.hot
        transient = self._planner.transient(self._worst_step(caches, chunk))
        left = available // 2 + max(0, hot - self.floor)
        return self._live_bytes(caches) + transient <= left

    def fits_without_others(self, caches: Caches, chunk: int, weights: int) -> bool:
        alone = copy(self)
        alone.ledger = replace(self.ledger, weights=weights)
        return alone.ever_fits(caches, chunk)

    def reserve(self, caches: Caches) -> None:
        """Set the bytes that running sequences will hold when they finish."""
        self.reserved = self._live_bytes(caches) + self.features

    def make_room_for(
        self, step: StepShape, after: Caches, cuts: Cuts, cache: PrefixCache, now: float
    ) -> bool:
        """Make room for a step that leaves these caches and cuts. Returns whether it may run."""
        transient = self._planner.corrected(step, now)
        need = self._growth_bytes(after, cuts) + transient
        self._relieve(max(need, transient), cache)  # caches may shrink, but only after the step
        return self._plan_if_it_fits(transient, need, cache)

    def fits_as_is(
        self, step: StepShape, after: Caches, cuts: Cuts, cache: PrefixCache, now: float
    ) -> bool:
        """Return whether such a step may run without evicting."""
        transient = self._planner.corrected(step, now)
        need = self._growth_bytes(after, cuts) + transient + self.ledger.pool
        return self._plan_if_it_fits(transient, need, cache)

    def bytes_for_read_ahead(self) -> int:
        others, ledger = self._neighbours, self.ledger
        live = max(ledger.live, self.reserved) + max(others.live, others.reserved)
        queue = max(self._queue, ledger.pending + others.pending)
        taken = ledger.weights + live + queue + others.hot + ledger.step + self.floor
        return max(0, self.limit - taken - self.pressure.taken)

    def _growth_bytes(self, after: Caches, cuts: Cuts) -> int:
        stored = self._planner.stored_bytes(cuts.tokens, cuts.checkpoints, refers=cuts.refers)
        # Idle blocks that come into use are counted in the hot tier already.
        live = self._live_bytes(after) + self.features - after.idle_bytes
        return live - self.ledger.live + stored

    def _plan_if_it_fits(self, transient: int, need: int, cache: PrefixCache) -> bool:
        if need > self._room_bytes(cache):
            return False
        self.ledger = replace(self.ledger, step=max(self.ledger.step, transient))
        return True

    def _fit_under_limit(self, caches: Caches, transient: int) -> bool:
        least = self.ledger.weights + self._queue + self.floor
        return least + self._live_bytes(caches) + transient <= self.limit

    def _live_bytes(self, caches: Caches) -> int:
        live = self._planner.live(caches.rows, caches.prefills, caches.in_blocks)
        return live + caches.block_bytes

    @property
    def floor(self) -> int:
        """The bytes that the hot tier keeps in any case."""
        return hot_floor_bytes(self.limit - self.ledger.weights)

    def _room_bytes(self, cache: PrefixCache, queue: int | None = None) -> int:
        ledger, others = self.ledger, self._neighbours
        live = ledger.live + others.live
        queue = self._queue if queue is None else queue
        queue = max(queue, ledger.pending + others.pending)
        hot = cache.index.idle_bytes + others.hot
        return self.limit - ledger.weights - live - queue - hot

    def _relieve(self, need: int, cache: PrefixCache) -> None:
        pool = self.ledger.pool
        if taken := self.pressure.taken:  # the hot tier alone gives it up, as far as its floor
            missing = need + taken - self._room_bytes(cache, queue=0)
            if missing > 0:
                self._evict(missing, cache)
        with_pool = need + pool
        drained_lately = self._steps_since_drain < _STEPS_BETWEEN_DRAINS
        if with_pool > self._room_bytes(cache) and drained_lately:
            self._evict(with_pool - self._room_bytes(cache), cache)
        if with_pool > self._room_bytes(cache) and pool:
            self.drains_pool = True
            self.note(Relief.POOL)
        if need > self._room_bytes(cache):
            self._evict(need - self._room_bytes(cache), cache)

    def _evict(self, nbytes: int, cache: PrefixCache) -> None:
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

    def _worst_step(self, caches: Caches, chunk: int) -> StepShape:
        longest = max((*caches.rows, *caches.prefills))
        decode = self.worst_decode(caches.rows or (longest,))
        prefill = PrefillShape(1, chunk, max(0, longest - chunk), refers=True)
        return StepShape(decode, (prefill,))
