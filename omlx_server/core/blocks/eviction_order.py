"""The order of eviction: LRU over blocks without children. Pure; mlx thread. In memory this goes
first:

    1  superseded checkpoints
    2  the least recently used block, with its checkpoints
    3  checkpoints whose blocks are held: those of the lattice, then the least recently used one
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from omlx_server.core.blocks.block import Block, CacheEntry, Checkpoint, PayloadId, Worth

_MOST_OUTDATED = 1024  # heap entries beyond two per block: a touch outdates one


class Used(Protocol):
    """A block of any tier. `used` is the tick of its last use; 0 is evicted first."""

    used: int


K = TypeVar("K", bound=int | bytes)
B = TypeVar("B", bound=Used)


class EvictionOrder(Generic[K, B]):
    """The eviction order of one tier. Unknown keys are ignored."""

    def __init__(self, blocks: Mapping[K, B], may_go: Callable[[B], bool]) -> None:
        self._blocks = blocks
        self._may_go = may_go
        self._heap: list[tuple[int, K]] = []  # entries may be outdated
        self._clock = 0

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def touch(self, key: K) -> None:
        block = self._blocks.get(key)
        if block is not None:
            block.used = self.tick()
            self.note(key)

    def lost_child(self, key: K, child: B) -> None:
        block = self._blocks.get(key)
        if block is not None:
            block.used = max(block.used, child.used)
            self.note(key)

    def put_first(self, key: K) -> None:
        block = self._blocks.get(key)
        if block is not None:
            block.used = 0
            self.note(key)

    def note(self, key: K) -> None:
        """Queue a block if it may go. Call it after each insert, use and release."""
        block = self._blocks.get(key)
        if block is None or not self._may_go(block):
            return
        heapq.heappush(self._heap, (block.used, key))
        if len(self._heap) > 2 * len(self._blocks) + _MOST_OUTDATED:
            self._heap = [(b.used, k) for k, b in self._blocks.items() if self._may_go(b)]
            heapq.heapify(self._heap)

    def next_block(self) -> B | None:
        """Return the next block, which the caller must remove."""
        while self._heap:
            used, key = heapq.heappop(self._heap)
            block = self._blocks.get(key)
            if block is not None and block.used == used and self._may_go(block):
                return block
        return None


class HotOrder(EvictionOrder[PayloadId, Block]):
    """The order of blocks and checkpoints in memory."""

    def __init__(
        self, blocks: Mapping[PayloadId, Block], checkpoints: Mapping[PayloadId, Checkpoint]
    ) -> None:
        super().__init__(blocks, lambda block: block.evictable)
        self._checkpoints = checkpoints
        self._unstamped: set[PayloadId] = set()  # used since `note_time`

    def touch(self, key: PayloadId) -> None:
        super().touch(key)
        self._unstamped.add(key)

    def lost_child(self, key: PayloadId, child: Block) -> None:
        super().lost_child(key, child)
        if key in self._blocks:
            self._blocks[key].used_at = max(self._blocks[key].used_at, child.used_at)
            if child.id in self._unstamped:
                self._unstamped.add(key)

    def note_time(self, now: float) -> None:
        for key in self._unstamped & self._blocks.keys():
            self._blocks[key].used_at = now
        self._unstamped.clear()

    def idle_seconds(self, block: Block, now: float) -> float:
        return 0.0 if block.id in self._unstamped else max(0.0, now - block.used_at)

    def next(self) -> CacheEntry | None:
        return self.next_checkpoint(Worth.SUPERSEDED) or self.next_block() or self.next_checkpoint()

    def next_checkpoint(self, most: Worth = Worth.SHARED) -> Checkpoint | None:
        free = (c for c in self._checkpoints.values() if c.worth <= most and not c.leases)
        # SHARED counts as NEWEST: a branch point that nobody uses is not worth more than the end of
        # a forgotten conversation.
        return min(free, key=lambda c: (min(c.worth, Worth.NEWEST), c.used), default=None)

    def by_use(self) -> list[CacheEntry]:
        """Return blocks by last use, parents first, each followed by its checkpoints."""
        # A block is used whenever one of its descendants is.
        used: dict[PayloadId, int] = {}
        for block in sorted(self._blocks.values(), key=lambda block: -block.start):
            used[block.id] = max(block.used, used.get(block.id, 0))
            if block.parent is not None:
                above = block.parent.id
                used[above] = max(used[block.id], used.get(above, 0))
        blocks = sorted(self._blocks.values(), key=lambda b: (-used[b.id], b.start))
        entries: list[CacheEntry] = []
        for block in blocks:
            entries += [block, *block.checkpoints.values()]
        return entries
