"""Evicts from the hot tier, and collects what may go to the cold one. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omlx_server.core.blocks.block import (
    Block,
    CacheEntry,
    CacheLayout,
    Checkpoint,
    PayloadId,
    Worth,
)
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.blocks.lookup import BlocksInUse, PrefixMatch
from omlx_server.core.cold.index import ColdEntry, WriteCause
from omlx_server.core.prefix_cache.report import CacheReport, Dropped


@dataclass(frozen=True, slots=True)
class HotBudget:
    """Limits of the hot tier."""

    nbytes: int
    checkpoint_bytes: int
    buffers: int = 200_000
    lattice_start: int = 512  # the first position of the lattice; then each double


class Eviction:
    """Keeps an index within a `budget`. With `demotes` it collects for the cold tier."""

    def __init__(
        self, index: BlockIndex, budget: HotBudget, stats: CacheReport, *, demotes: bool
    ) -> None:
        self._index = index
        self.budget = budget
        self._stats = stats
        self._demotes = demotes
        self._evicted: list[PayloadId] = []
        self._demoted: list[CacheEntry] = []
        self._forbidden: list[ColdEntry] = []

    def shrink(self) -> None:
        index, budget = self._index, self.budget
        self.note_gone(index.take_replaced())
        while index.checkpoint_bytes > budget.checkpoint_bytes:
            if not self._evict(index.order.next_checkpoint()):
                break
        while index.idle_bytes > budget.nbytes or index.buffers > budget.buffers:
            if not self._evict(index.order.next()):
                break

    def make_room(self, nbytes: int, floor: int) -> Dropped:
        """Evict until `nbytes` have gone, or `floor` idle bytes remain. Returns what went."""
        index, stats, idle_bytes = self._index, self._stats, self._index.idle_bytes
        blocks, checkpoints = stats.evicted_blocks, stats.evicted_checkpoints
        stop_at = max(floor, idle_bytes - nbytes)
        while index.idle_bytes > stop_at and self._evict(index.order.next()):
            pass
        return Dropped(
            idle_bytes - index.idle_bytes,
            stats.evicted_blocks - blocks,
            stats.evicted_checkpoints - checkpoints,
        )

    def stop_demoting(self) -> None:
        self._demotes, self._demoted = False, []

    def note_gone(self, gone: list[PayloadId]) -> None:
        """Hand out these ids, which left without eviction, by `take_evicted`."""
        self._evicted += gone

    def drop_lost(self, ids: Iterable[PayloadId]) -> None:
        self.note_gone(self._index.remove(ids))

    def forget_demoted(self) -> None:
        """Let nothing go to the cold tier that has just left."""
        self._demoted = []

    def forbid(self, entries: Iterable[ColdEntry]) -> None:
        """Hand out what the cold tier has to delete, by `take_forbidden`."""
        self._forbidden += entries

    def take_forbidden(self) -> list[ColdEntry]:
        entries, self._forbidden = self._forbidden, []
        return entries

    @property
    def has_evicted(self) -> bool:
        return bool(self._evicted or self._demoted or self._forbidden)

    def take_evicted(self) -> list[PayloadId]:
        """Return the ids of what left. The caller drops their payloads."""
        ids, self._evicted = self._evicted, []
        return ids

    def take_demoted(self) -> list[CacheEntry]:
        entries, self._demoted = self._demoted, []
        return entries

    def _evict(self, entry: CacheEntry | None) -> bool:
        if entry is None:
            return False
        self._stats.evicted_blocks += isinstance(entry, Block)
        self._stats.evicted_checkpoints += isinstance(entry, Checkpoint)
        entries = self._index.evict(entry)
        self._evicted += [each.id for each in entries]
        if self._demotes:
            self._demoted += [
                each
                for each in entries
                if isinstance(each, Block) or each.worth is not Worth.SUPERSEDED
            ]
        return True


def write_cause(entry: CacheEntry) -> WriteCause:
    block = entry if isinstance(entry, Block) else entry.block
    return WriteCause.SEEN_AGAIN if block.seen_again else WriteCause.SEEN_ONCE


class Uses:
    """Counts the users of blocks as sequences begin, fork, go on and end."""

    def __init__(self, index: BlockIndex, layout: CacheLayout, eviction: Eviction) -> None:
        self._index = index
        self._layout = layout
        self._eviction = eviction

    def begin(self, prefix: PrefixMatch) -> BlocksInUse:
        goes_on = prefix.match.goes_on
        for block in prefix.match.blocks:
            block.seen_again = True
        return self.share(BlocksInUse([*self._full(prefix, prefix.cached)], goes_on=goes_on))

    def extend(self, blocks: BlocksInUse, id: PayloadId | None) -> None:
        """Note that a sequence refers to the block it made, if full and after its others."""
        block = self._index.entry(id) if id is not None else None
        if not isinstance(block, Block) or not (blocks.at_work and self._layout.refers):
            return
        if block.start == blocks.tokens and len(block.tokens) == self._layout.block_size:
            self._index.use(block)
            blocks.path.append(block)

    def share(self, blocks: BlocksInUse) -> BlocksInUse:
        for block in blocks.path:
            self._index.use(block)
        copied = max(blocks.copied, self._copied(blocks.tokens))
        return BlocksInUse(blocks.path.copy(), True, copied, blocks.goes_on)

    def end(self, blocks: BlocksInUse) -> None:
        path, blocks.path, blocks.at_work = blocks.path, [], False
        for block in reversed(path):
            self._index.unuse(block)
        if path:
            self._eviction.shrink()

    def forget_removed(self, users: Iterable[BlocksInUse]) -> None:
        """Forget blocks that were removed from the index while in use."""
        for blocks in users:
            while blocks.path and self._index.entry(blocks.path[-1].id) is None:
                blocks.path.pop()

    def of_restore(self, prefix: PrefixMatch, tokens: int) -> tuple[int, int]:
        """Return the tokens that a restore would refer to, and their unused bytes."""
        path = self._full(prefix, tokens)
        nbytes = sum(block.size.nbytes for block in path if not block.users)
        used = len(path) * self._layout.block_size
        return used - self._copied(used), nbytes

    def _full(self, prefix: PrefixMatch, tokens: int) -> Sequence[Block]:
        count = min(tokens, prefix.cached) // self._layout.block_size
        return prefix.match.blocks[:count] if self._layout.refers else ()

    def _copied(self, tokens: int) -> int:
        return tokens if tokens <= self._layout.copies else 0
