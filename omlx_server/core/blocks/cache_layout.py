"""The kinds of layers of a model, by what their caches keep of a sequence.

DELTA       needed for every token from 0 on: ordinary and quantized KV
WINDOW      needed for the last `window` tokens only: sliding attention
CHECKPOINT  needed at the exact boundary: recurrent state
"""

from dataclasses import dataclass
from enum import StrEnum


class LayerKind(StrEnum):
    DELTA = "delta"
    WINDOW = "window"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The layout of a model's caches, in tokens. With `stores_decoded` answers become blocks
    too. With `refers` caches and blocks share bytes, except a sequence's first `copies` stored
    tokens."""

    kinds: frozenset[LayerKind]
    block_size: int
    window: int = 0
    format: str = ""
    stores_decoded: bool = True
    refers: bool = False
    copies: int = 0

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
