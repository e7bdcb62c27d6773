"""A block of the prefix cache: a run of tokens that all sequences with one prefix share;
and the layout of a model's caches."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NewType, TypeAlias

from omlx_server.core.blocks.keys import BlockKey

PayloadId = NewType("PayloadId", int)


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """`tokens` from `start` on, after the block (or root) with key `parent`."""

    parent: BlockKey
    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """Memory of a payload: bytes, and buffers, whose number Metal bounds too."""

    nbytes: int
    buffers: int


class Worth(IntEnum):
    """Why a checkpoint is kept; the highest is worth most."""

    SUPERSEDED = 0  # the end of a prompt or answer that has gone on
    LATTICE = 1  # a regular grid
    NEWEST = 2  # the end of a prompt or answer
    SHARED = 3  # where prompts part


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The recurrent state after the first `position` tokens."""

    id: PayloadId
    block: "Block"
    position: int
    size: Size
    worth: Worth
    leases: int = 0
    used: int = 0


@dataclass(slots=True, eq=False)
class Block:
    """Tokens [start, stop) after those of its ancestors."""

    id: PayloadId
    key: BlockKey
    parent: "Block | None"
    start: int
    tokens: tuple[int, ...]
    size: Size
    children: dict[tuple[int, ...], "Block"] = field(default_factory=dict)
    by_first: dict[int, list["Block"]] = field(default_factory=dict)  # children, by first token
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    leases: int = 0
    users: int = 0  # running sequences that refer to it
    seen_again: bool = False  # a second prompt had it, or it follows in a conversation
    used: int = 0  # the tick of its last use
    used_at: float = 0.0  # seconds

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    @property
    def evictable(self) -> bool:
        is_held = self.leases or self.users or any(c.leases for c in self.checkpoints.values())
        return not self.children and not is_held

    def begins_with(self, tokens: tuple[int, ...]) -> bool:
        return self.tokens[: len(tokens)] == tokens


CacheEntry: TypeAlias = Block | Checkpoint


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix: all of `blocks`, then `shared` tokens of `partial`."""

    blocks: tuple[Block, ...]
    partial: Block | None = None
    shared: int = 0

    @property
    def depth(self) -> int:
        return (self.blocks[-1].stop if self.blocks else 0) + self.shared

    @property
    def path(self) -> tuple[Block, ...]:
        return self.blocks if self.partial is None else (*self.blocks, self.partial)

    @property
    def goes_on(self) -> bool:
        """Whether a conversation seems to go on here; many prompts part behind a shared head."""
        return bool(self.blocks) and len(self.blocks[-1].children) <= 1

    def deepest(self) -> Block | None:
        return self.partial or (self.blocks[-1] if self.blocks else None)

    def checkpoints(self) -> dict[int, Checkpoint]:
        """Return the checkpoints by position, also siblings' with the same tokens."""
        checkpoints: dict[int, Checkpoint] = {}
        for block in self.path:
            assert block.parent is not None  # only a root has none
            for sibling in block.parent.by_first[block.tokens[0]]:
                for position, checkpoint in sibling.checkpoints.items():
                    head = sibling.tokens[: position - block.start]
                    if block.begins_with(head) and position <= self.depth:
                        checkpoints[position] = checkpoint
        return checkpoints


class LayerKind(StrEnum):
    DELTA = "delta"  # needed for every token from 0 on: ordinary and quantized KV
    WINDOW = "window"  # needed for the last `window` tokens only: sliding attention
    CHECKPOINT = "checkpoint"  # needed at the exact boundary: recurrent state


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The layout of a model's caches, in tokens."""

    kinds: frozenset[LayerKind]
    block_size: int
    window: int = 0
    format: str = ""
    stores_decoded: bool = True  # answers become blocks too
    refers: bool = False  # caches and blocks share bytes
    copies: int = 0  # but for a sequence's first stored tokens

    @property
    def keeps(self) -> bool:
        return bool(self.kinds)

    def namespace(self, weights: str) -> str:
        return f"{weights}|{self.format}|{self.block_size}"

    @property
    def checkpointed(self) -> bool:
        """Whether only checkpoints can be restored."""
        return LayerKind.CHECKPOINT in self.kinds


NOTHING_KEPT = CacheLayout(frozenset(), block_size=64, stores_decoded=False)
"""The layout of a model whose caches can't be cut into blocks."""
