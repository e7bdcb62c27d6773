"""A block of the prefix cache: some tokens of every sequence that goes through it, and the states
of recurrent layers inside it. Values and links only; `core/blocks/index.py` keeps the books.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType, TypeAlias

from omlx_server.core.blocks.keys import BlockKey

PayloadId = NewType("PayloadId", int)


@dataclass(frozen=True, slots=True)
class Size:
    """What a payload takes. Metal bounds the number of buffers apart from their bytes."""

    nbytes: int
    buffers: int


class Worth(IntEnum):
    """Why a checkpoint is kept; the higher reason counts where there are two. Which goes first is
    the word of `core/blocks/eviction_order.py`."""

    SUPERSEDED = 0
    LATTICE = 1
    NEWEST = 2
    SHARED = 3


@dataclass(slots=True, eq=False)
class Checkpoint:
    """Recurrent state after `position` tokens."""

    id: PayloadId
    block: "Block"
    position: int
    size: Size
    worth: Worth
    leases: int = 0
    used: int = 0


@dataclass(slots=True, eq=False)
class Block:
    """Tokens [start, stop) of every sequence that goes through here."""

    id: PayloadId
    key: BlockKey
    parent: "Block | None"
    start: int
    tokens: tuple[int, ...]
    size: Size
    children: dict[tuple[int, ...], "Block"] = field(default_factory=dict)
    by_first: dict[int, list["Block"]] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    leases: int = 0
    used: int = 0

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def evictable(self) -> bool:
        """Whether nothing hangs on it and nobody holds it."""
        held = self.leases or any(c.leases for c in self.checkpoints.values())
        return not self.children and not held

    def begins(self, tokens: tuple[int, ...]) -> bool:
        """Whether its tokens begin with these."""
        return self.tokens[: len(tokens)] == tokens


Held: TypeAlias = Block | Checkpoint


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix of a token sequence.

    `blocks` are shared wholly, in order; of `partial`, the block after them, the first `shared`
    tokens are.
    """

    blocks: tuple[Block, ...]
    partial: Block | None = None
    shared: int = 0

    @property
    def depth(self) -> int:
        return (self.blocks[-1].stop if self.blocks else 0) + self.shared

    def deepest(self) -> Block | None:
        return self.partial or (self.blocks[-1] if self.blocks else None)

    def states(self) -> dict[int, Checkpoint]:
        """Checkpoints on the way by their positions, also those in siblings that share enough of
        their tokens."""
        found: dict[int, Checkpoint] = {}
        for block in (*self.blocks, *([self.partial] if self.partial else [])):
            assert block.parent is not None
            for sibling in block.parent.by_first[block.tokens[0]]:
                for position, checkpoint in sibling.checkpoints.items():
                    own = sibling.tokens[: position - block.start]
                    if block.begins(own) and position <= self.depth:
                        found[position] = checkpoint
        return found
