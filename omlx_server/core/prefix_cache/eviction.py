"""How much leaves the hot tier, and what of it goes to the cold one. Pure, owned by the prefix
cache. Which block goes first is the word of `core/blocks/eviction_order.py`.
"""

from dataclasses import dataclass

from omlx_server.core.blocks.block import Block, Checkpoint, Held, PayloadId, Worth
from omlx_server.core.blocks.index import BlockIndex
from omlx_server.core.prefix_cache.report import CacheStats


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of the hot tier. Blocks and checkpoints share `nbytes`; checkpoints are bounded apart
    as well. Long prompts leave a checkpoint at `lattice_start` times each power of two."""

    nbytes: int
    checkpoint_bytes: int
    buffers: int = 200_000
    lattice_start: int = 512


@dataclass(frozen=True, slots=True)
class Freed:
    """How many payloads were let go."""

    checkpoints: int
    blocks: int


class Eviction:
    """Evicts from an index. What was evicted is handed out by `take_evicted`, and with `demotes`
    what the cold tier may want of it by `take_demoted`."""

    def __init__(
        self, index: BlockIndex, budget: Budget, stats: CacheStats, *, demotes: bool
    ) -> None:
        self._index = index
        self.budget = budget
        self._stats = stats
        self._demotes = demotes
        self._evicted: list[PayloadId] = []
        self._demoted: list[Held] = []

    def shrink(self) -> None:
        """Evict until the budget holds, or everything that is left is held."""
        index, budget = self._index, self.budget
        self.forget(index.take_replaced())
        while index.checkpoint_bytes > budget.checkpoint_bytes:
            if not self._evict(index.order.next_state()):
                break
        while index.nbytes > budget.nbytes or index.buffers > budget.buffers:
            if not self._evict(index.order.next()):
                break

    def make_room(self, nbytes: int, floor: int) -> Freed:
        """Let so many bytes go where they are needed for something else, but keep `floor`. Less
        goes when the rest is held."""
        index, stats = self._index, self._stats
        stop = max(floor, index.nbytes - nbytes)
        states, blocks = stats.evicted_checkpoints, stats.evicted_blocks
        while index.nbytes > stop and self._evict(index.order.next()):
            pass
        return Freed(stats.evicted_checkpoints - states, stats.evicted_blocks - blocks)

    def stop_demoting(self) -> None:
        """There is no cold tier from now on."""
        self._demotes, self._demoted = False, []

    def forget(self, gone: list[PayloadId]) -> None:
        """Note what has left the index otherwise."""
        self._evicted += gone

    def take_evicted(self) -> list[PayloadId]:
        """Ids whose payloads are to be dropped, since the last call."""
        gone, self._evicted = self._evicted, []
        return gone

    def take_demoted(self) -> list[Held]:
        """What left for the cold tier since the last call."""
        gone, self._demoted = self._demoted, []
        return gone

    def _evict(self, held: Held | None) -> bool:
        if held is None:
            return False
        self._stats.evicted_blocks += isinstance(held, Block)
        self._stats.evicted_checkpoints += isinstance(held, Checkpoint)
        gone = self._index.evict(held)
        self._evicted += [each.id for each in gone]
        if self._demotes:
            self._demoted += [
                each
                for each in gone
                if isinstance(each, Block) or each.worth is not Worth.SUPERSEDED
            ]
        return True
