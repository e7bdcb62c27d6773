"""Which block goes first, in memory and in the cold tier. Pure; owned by the mlx thread.

Of the blocks that nothing hangs on and nobody holds, the one used longest ago goes first. A block
is as young as the children that it has lost, since a use of a child was a use of all before it.
In memory recurrent states go as well:

    1  superseded states
    2  the block used longest ago, with its states
    3  states whose blocks are held: those of the lattice first, then the one used longest ago
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from omlx_server.core.blocks.block import Block, Checkpoint, Held, PayloadId, Worth

_MOST_OUTDATED = 1024  # a touch leaves an outdated entry behind; so many may be in the heap


class Used(Protocol):
    """A block of any tier. `used` is when it was used last, by the clock of its order; 0 comes
    before all."""

    used: int


K = TypeVar("K", bound=int | bytes)
B = TypeVar("B", bound=Used)


class EvictionOrder(Generic[K, B]):
    """The `blocks` of one tier, which belong to its index, in the order in which they go."""

    def __init__(self, blocks: Mapping[K, B], may_go: Callable[[B], bool]) -> None:
        self._blocks = blocks
        self._may_go = may_go
        self._heap: list[tuple[int, K]] = []  # entries may be outdated
        self._clock = 0

    def tick(self) -> int:
        """The time of a use: later than all before it."""
        self._clock += 1
        return self._clock

    def touch(self, key: K) -> None:
        """Note that a block was used now. Those before it are safe while it is there, and inherit
        its age when it goes. A key that is not there is ignored, here and below."""
        block = self._blocks.get(key)
        if block is not None:
            block.used = self.tick()
            self.note(key)

    def lost_child(self, key: K, child: B) -> None:
        """Note that a child of a block has gone, which leaves the block its age."""
        block = self._blocks.get(key)
        if block is not None:
            block.used = max(block.used, child.used)
            self.note(key)

    def put_first(self, key: K) -> None:
        """Let a block go before all others: nobody will use it any more."""
        block = self._blocks.get(key)
        if block is not None:
            block.used = 0
            self.note(key)

    def note(self, key: K) -> None:
        """Note that a block may go from now on, if it may: it came, or it was released."""
        block = self._blocks.get(key)
        if block is None or not self._may_go(block):
            return
        heapq.heappush(self._heap, (block.used, key))
        if len(self._heap) > 2 * len(self._blocks) + _MOST_OUTDATED:
            self._heap = [(b.used, k) for k, b in self._blocks.items() if self._may_go(b)]
            heapq.heapify(self._heap)

    def next_block(self) -> B | None:
        """The block that goes next, which the caller takes out; None when all are held."""
        while self._heap:
            used, key = heapq.heappop(self._heap)
            block = self._blocks.get(key)
            if block is not None and block.used == used and self._may_go(block):
                return block
        return None


class HotOrder(EvictionOrder[PayloadId, Block]):
    """Blocks and recurrent states in memory."""

    def __init__(
        self, blocks: Mapping[PayloadId, Block], states: Mapping[PayloadId, Checkpoint]
    ) -> None:
        super().__init__(blocks, lambda block: block.evictable)
        self._states = states

    def next(self) -> Held | None:
        """What goes next, which the caller takes out; None when all is held."""
        return self.next_state(Worth.SUPERSEDED) or self.next_block() or self.next_state()

    def next_state(self, most: Worth = Worth.SHARED) -> Checkpoint | None:
        """The state that goes next of those that are worth `most` at most; None when all are
        held."""
        free = (c for c in self._states.values() if c.worth <= most and not c.leases)
        # A branch point that nobody comes by ages like the end of a forgotten conversation.
        return min(free, key=lambda c: (min(c.worth, Worth.NEWEST), c.used), default=None)

    def by_use(self) -> list[Held]:
        """All blocks, the last used first, each with its states, parents before their children."""
        used: dict[PayloadId, int] = {}
        for block in sorted(self._blocks.values(), key=lambda block: -block.start):
            used[block.id] = max(block.used, used.get(block.id, 0))
            if block.parent is not None:
                above = block.parent.id
                used[above] = max(used[block.id], used.get(above, 0))
        blocks = sorted(self._blocks.values(), key=lambda b: (-used[b.id], b.start))
        held: list[Held] = []
        for block in blocks:
            held += [block, *block.checkpoints.values()]
        return held
