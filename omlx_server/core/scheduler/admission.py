"""Holds the scheduler's steps within the memory: asks the guard what fits. Pure; mlx thread.

Without a guard everything fits.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from omlx_server.core.blocks.lookup import Ticket
from omlx_server.core.memory.guard import Caches, Cuts, Guard, Rung
from omlx_server.core.memory.shape import Decode, StepShape
from omlx_server.core.memory.shape import Prefill as Forward
from omlx_server.core.prefix_cache.prefix_cache import PrefixCache
from omlx_server.core.scheduler.grouping import Grouping
from omlx_server.core.scheduler.limits import SMALLEST_CHUNK
from omlx_server.core.scheduler.sequence import Prefill, Sequence
from omlx_server.core.step import Chunk

HEADROOM = 256
"""Who is let in when nobody else is there has room for an answer of so many tokens."""


@dataclass(frozen=True, slots=True)
class AtWork:
    """Who holds caches: rows that decode and prompts that are being read, and rows that leave
    (`ended`): the batch is as wide as the longest of those until it is copied. Of `others` only the
    leases are of interest, which they can do without: on blocks that they will need, or needed."""

    rows: Collection[Sequence]
    active: Collection[Prefill]
    others: Collection[Ticket]
    ended: Collection[Sequence] = ()

    @property
    def longest(self) -> int:
        return max((row.fed for row in self.rows), default=0)

    @property
    def widest(self) -> int:
        """How many tokens the batch has room for at most before the step."""
        return max((row.fed for row in self.ended), default=self.longest)


class Pressure:
    """`guard` is None where memory is not watched."""

    def __init__(self, guard: Guard | None, cache: PrefixCache, grouping: Grouping) -> None:
        self._guard = guard
        self._cache = cache
        self._grouping = grouping

    @property
    def drains_pool(self) -> bool:
        return self._guard is not None and self._guard.drains_pool

    @property
    def shares(self) -> bool:
        """Whether another model is at work, whose end would leave more room."""
        return self._guard is not None and self._guard.shares

    def note(self, rung: Rung) -> None:
        """Count a rung of the ladder."""
        if self._guard is not None:
            self._guard.note(rung)

    def explain(self, tokens: int) -> str:
        """For a request that is refused: what a row of so many tokens needs, and the account."""
        chunk = min(SMALLEST_CHUNK, tokens)
        return self._guard.explain(Caches(1, tokens), chunk) if self._guard is not None else ""

    def promise(self, work: AtWork) -> None:
        """Tell other models what those at work will hold."""
        if self._guard is not None:
            rows = len(work.rows) + sum(len(p.sequences) for p in work.active)
            longest = max((work.longest, *(p.target + 1 for p in work.active)))
            self._guard.promise(Caches(rows, longest) if rows else Caches())

    def fits_without_others(self, tokens: int, rows: int, weights: int) -> bool:
        """As `fits_alone`, were only these weights loaded."""
        chunk, caches = min(SMALLEST_CHUNK, tokens), Caches(rows, tokens)
        return self._guard is None or self._guard.fits_without_others(caches, chunk, weights)

    def rows_fit(self, work: AtWork, now: float) -> bool:
        """Whether all rows can decode once more."""
        if self._guard is None or not work.rows:
            return True
        step = StepShape(_decode(len(work.rows), max(work.longest, work.widest)))
        after = Caches(len(work.rows), work.longest + 1, _read(work.active))
        return self._allows(step, after, [], work, now)

    def fits_alone(self, tokens: int, rows: int) -> bool:
        """Whether so many rows of so many tokens fit when nobody else is at work."""
        chunk = min(SMALLEST_CHUNK, tokens)
        return self._guard is None or self._guard.ever_fits(Caches(rows, tokens), chunk)

    def lets_in(self, prefill: Prefill, work: AtWork, now: float) -> bool:
        """Whether a prompt that waits can begin."""
        return self.has_room(prefill, work, now) and self.takes_first(prefill, work, now)

    def has_room(self, prefill: Prefill, work: AtWork, now: float) -> bool:
        """Whether all who are at work can be finished beside a prompt that waits."""
        if self._guard is None:
            return True
        if self._is_alone(work):
            return self.fits_alone(prefill.target + 1, len(prefill.sequences))
        members = (*work.active, prefill)
        rows = len(work.rows) + sum(len(p.sequences) for p in members)
        longest = max(work.longest, max(p.target for p in members)) + 1
        chunk = min(SMALLEST_CHUNK, prefill.target)
        return self._guard.promises(Caches(rows, longest), chunk, now)

    def takes_first(self, prefill: Prefill, work: AtWork, now: float) -> bool:
        """Whether the first piece of a prompt that waits can be read now."""
        if self._guard is None or self._is_alone(work):
            return True
        stop = min(prefill.expected + SMALLEST_CHUNK, prefill.target)
        piece = Chunk(prefill.key, prefill.expected, prefill.context[prefill.expected : stop])
        return self.takes([], piece, work, now)

    def takes(self, planned: Items[Chunk], chunk: Chunk, work: AtWork, now: float) -> bool:
        """Whether a chunk can run in a step besides what is planned."""
        if self._guard is None:
            return True
        others = [p for p in work.active if p.key != chunk.prefill]
        rows = len(work.rows) + len(chunk.joins)
        longest = max(work.longest, chunk.stop if chunk.joins else 0)
        under_way = _read(others) if chunk.joins else (*_read(others), chunk.stop)
        chunks = [*planned, chunk]
        step = StepShape(
            _decode(rows, max(longest, work.widest)) if rows else None,
            forwards(self._grouping.group(chunks)),
        )
        return self._allows(step, Caches(rows, longest, under_way), chunks, work, now)

    def _is_alone(self, work: AtWork) -> bool:
        return not (work.rows or work.active or self.shares)

    def _allows(
        self, step: StepShape, after: Caches, chunks: Items[Chunk], work: AtWork, now: float
    ) -> bool:
        guard = self._guard
        cuts = self._cuts(chunks, work)
        if guard is None or guard.allows(step, after, cuts, self._cache, now):
            return True
        held = [ticket for ticket in work.others if ticket.leased]
        for ticket in held:
            self._cache.let_go(ticket)
        return bool(held) and guard.allows(step, after, cuts, self._cache, now)

    def _cuts(self, chunks: Items[Chunk], work: AtWork) -> Cuts:
        """At most: of rows that are about to complete a block, or just have, or leave."""
        if not self._cache.keeps:
            return Cuts()
        size = self._cache.layout.block_size
        ended = len(work.ended)
        blocks = ended + sum((row.fed + 1) % size <= 1 for row in work.rows)
        tokens = size * blocks + sum(len(chunk.tokens) for chunk in chunks)
        return Cuts(tokens, ended + len(chunks))


def _decode(rows: int, longest: int) -> Decode:
    """Rows can leave and buffers grow at any step: there is always room for one layer twice."""
    return Decode(rows, longest, grows=True)


def _read(prefills: Iterable[Prefill]) -> tuple[int, ...]:
    return tuple(prefill.computed for prefill in prefills)


def forwards(groups: Iterable[Items[Chunk]]) -> tuple[Forward, ...]:
    """What the planner has to know of groups of chunks."""
    return tuple(
        Forward(
            rows=len(group),
            tokens=max(len(chunk.tokens) for chunk in group),
            context=max(chunk.start for chunk in group),
        )
        for group in groups
    )
