"""Keeps the scheduler's steps within the memory. Pure; mlx thread."""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace

from omlx_server.core.blocks.lookup import PrefixHandle
from omlx_server.core.memory.guard import Caches, Cuts, MemoryGuard, Relief
from omlx_server.core.memory.kv import PrefillShape, StepShape
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.request import Request
from omlx_server.core.scheduler.limits import SMALLEST_CHUNK, Grouping
from omlx_server.core.scheduler.sequence import PrefillState, Sequence
from omlx_server.core.step import Chunk

HEADROOM = 256
"""Tokens of an answer for which a request must have room when it is alone."""


@dataclass(frozen=True, slots=True)
class AtWork:
    """The sequences that count when memory is checked."""

    rows: Collection[Sequence]
    active: Collection[PrefillState]
    others: Collection[PrefixHandle]  # whose leases can be released
    ended: Collection[Sequence] = ()  # rows that leave in the next step

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple([row.fed for row in self.rows])

    @property
    def leaving(self) -> tuple[int, ...]:
        return tuple([row.fed for row in self.ended])


class Admission:
    """Asks the memory guard what fits. Without a `guard` everything does."""

    def __init__(self, guard: MemoryGuard | None, cache: PrefixCache, grouping: Grouping) -> None:
        self._guard = guard
        self._cache = cache
        self._grouping = grouping

    @property
    def drains_pool(self) -> bool:
        return self._guard is not None and self._guard.drains_pool

    @property
    def is_paused(self) -> bool:
        """Whether the machine is so short of memory that requests run one at a time."""
        return self._guard is not None and self._guard.pressure.is_critical

    @property
    def shares_memory(self) -> bool:
        """Whether other models or jobs are at work."""
        return self._guard is not None and self._guard.shares_memory

    def note(self, relief: Relief) -> None:
        if self._guard is not None:
            self._guard.note(relief)

    def explain(self, tokens: int) -> str:
        """Return why a sequence of so many tokens doesn't fit."""
        chunk = min(SMALLEST_CHUNK, tokens)
        return self._guard.explain(Caches((tokens,)), chunk) if self._guard is not None else ""

    def reserve(self, work: AtWork) -> None:
        """Tell the guard what all at work will hold when they finish."""
        if self._guard is not None:
            self._guard.reserve(self._caches_when_finished(work, work.active))

    def fits_without_others(self, request: Request, weights: int) -> bool:
        tokens = len(request.tokens) + 1
        chunk, caches = min(SMALLEST_CHUNK, tokens), Caches((tokens,) * request.n)
        return self._guard is None or self._guard.fits_without_others(caches, chunk, weights)

    def make_room_for_rows(self, work: AtWork, now: float) -> bool:
        """Make room for another decode. Returns whether there is enough."""
        if self._guard is None or not work.rows:
            return True
        step = StepShape(self._guard.worst_decode(work.lengths, work.leaving))
        after = self._caches_now(work, work.active, row_growth=1)
        return self._make_room(step, after, [], work, now)

    def fits_as_is(self, work: AtWork, now: float, more: int) -> bool:
        """Return whether all rows can decode `more` tokens without evicting."""
        decode = self._guard.worst_decode(work.lengths, work.leaving) if self._guard else None
        if self._guard is None or decode is None:
            return True
        step = StepShape(replace(decode, tokens=1 + more))
        after = self._caches_now(work, work.active, row_growth=1 + more)
        return self._guard.fits_as_is(step, after, self._cuts([], work, 1 + more), self._cache, now)

    def fits_for_long(self, work: AtWork, now: float, more: int) -> bool:
        """Return whether rows can decode `more` tokens before memory is checked again."""
        if self._guard is None:
            return True
        is_tight = self._guard.drains_pool or self._guard.made_room or self._guard.shares_memory
        return bool(work.rows) and not is_tight and self.fits_as_is(work, now, more)

    def fits_alone(self, tokens: int, rows: int) -> bool:
        chunk = min(SMALLEST_CHUNK, tokens)
        return self._guard is None or self._guard.ever_fits(Caches((tokens,) * rows), chunk)

    def may_admit(self, prefill: PrefillState, work: AtWork, now: float) -> bool:
        """Return whether all at work can be finished beside a waiting prompt. Changes nothing."""
        if self._guard is None:
            return True
        chunk = min(SMALLEST_CHUNK, prefill.target)
        any_compute = bool(work.rows or work.active) or self._guard.others_compute
        if self.is_paused:
            alone = self._caches_when_finished(AtWork([], [], []), [prefill])
            if any_compute or not self._guard.fits_in_what_is_left(alone, chunk):
                return False
        if self._is_alone(work):
            return self.fits_alone(prefill.target + 1, len(prefill.sequences))
        finished = self._caches_when_finished(work, (*work.active, prefill))
        return self._guard.can_reserve(finished, chunk, now, spares_machine=any_compute)

    def admit(self, prefill: PrefillState, work: AtWork, now: float) -> bool:
        """Make room for the first chunk of a waiting prompt. Returns whether there is enough."""
        if self._guard is None or self._is_alone(work):
            return True
        start = prefill.expected
        stop = min(start + SMALLEST_CHUNK, prefill.target)
        chunk = Chunk(prefill.key, start, prefill.context[start:stop], restored=start)
        with_prompt = replace(work, active=(*work.active, prefill))
        return self.make_room_for_chunk([], chunk, with_prompt, now)

    def make_room_for_chunk(
        self, planned: Items[Chunk], chunk: Chunk, work: AtWork, now: float
    ) -> bool:
        """Make room for a chunk besides the planned ones. Returns whether there is enough."""
        if self._guard is None:
            return True
        chunks = [*planned, chunk]
        joining = (chunk.stop,) * len(chunk.joins)
        step = StepShape(
            self._guard.worst_decode((*work.lengths, *joining), work.leaving),
            group_shapes(self._grouping.group(chunks)),
        )
        return self._make_room(step, self._caches_after_chunk(chunk, work), chunks, work, now)

    def _caches_after_chunk(self, chunk: Chunk, work: AtWork) -> Caches:
        owner = next((p for p in work.active if p.key == chunk.prefill), None)
        others = [prefill for prefill in work.active if prefill is not owner]
        tokens, nbytes = self._blocks_used_by(owner) if owner is not None else (0, 0)
        caches, rows = self._caches_now(work, others, row_growth=0), len(chunk.joins)
        # After its last chunk it is one row or several, else still a prefill.
        return replace(
            caches,
            rows=(*caches.rows, *[chunk.stop] * rows),
            prefills=caches.prefills if rows else (*caches.prefills, chunk.stop),
            in_blocks=caches.in_blocks + tokens * max(rows, 1),
            block_bytes=caches.block_bytes + nbytes,
            idle_bytes=nbytes,
        )

    def _caches_now(
        self, work: AtWork, prefills: Collection[PrefillState], *, row_growth: int
    ) -> Caches:
        users = [row.blocks for row in work.rows] + [p.handle.blocks for p in prefills]
        return Caches(
            tuple([tokens + row_growth for tokens in work.lengths]),
            tuple([prefill.computed for prefill in prefills]),
            sum([blocks.referred for blocks in users if blocks.path]),
            self._cache.index.in_use,
        )

    def _caches_when_finished(self, work: AtWork, prefills: Iterable[PrefillState]) -> Caches:
        caches = self._caches_now(work, (), row_growth=1)
        rows, in_blocks, nbytes = list(caches.rows), caches.in_blocks, caches.block_bytes
        for prefill in prefills:
            tokens, idle_bytes = self._blocks_used_by(prefill)
            rows += [prefill.target + 1] * len(prefill.sequences)
            in_blocks += tokens * len(prefill.sequences)
            nbytes += idle_bytes
        return Caches(tuple(rows), in_blocks=in_blocks, block_bytes=nbytes)

    def _blocks_used_by(self, prefill: PrefillState) -> tuple[int, int]:
        # Returns the tokens of blocks it refers to, and the bytes of those not in use yet.
        if prefill.handle.waiting:
            return self._cache.blocks_to_use(prefill.handle, prefill.expected)
        return prefill.handle.blocks.referred, 0

    def _is_alone(self, work: AtWork) -> bool:
        return not (work.rows or work.active or self.shares_memory)

    def _make_room(
        self, step: StepShape, after: Caches, chunks: Items[Chunk], work: AtWork, now: float
    ) -> bool:
        guard = self._guard
        cuts = self._cuts(chunks, work)
        if guard is None or guard.make_room_for(step, after, cuts, self._cache, now):
            return True
        leases = [handle for handle in work.others if handle.leased]
        for handle in leases:
            self._cache.let_go(handle)
        return bool(leases) and guard.make_room_for(step, after, cuts, self._cache, now)

    def _cuts(self, chunks: Items[Chunk], work: AtWork, fed: int = 1) -> Cuts:
        if not self._cache.layout.keeps:
            return Cuts()
        size = self._cache.layout.block_size
        ended = len(work.ended)  # each leaves a short block, and maybe a checkpoint
        blocks = ended + sum([(n + fed) // size - (n - 1) // size for n in work.lengths])
        tokens = size * blocks + sum(len(chunk.tokens) for chunk in chunks)
        return Cuts(tokens, ended + len(chunks), self._cache.layout.refers)


def group_shapes(groups: Iterable[Items[Chunk]]) -> tuple[PrefillShape, ...]:
    return tuple(
        PrefillShape(
            rows=len(group),
            tokens=max(len(chunk.tokens) for chunk in group),
            context=max(chunk.start for chunk in group),
            refers=any(chunk.restored for chunk in group),
        )
        for group in groups
    )
