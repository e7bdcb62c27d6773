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
    """The layout of a model's caches. `block_size` and `window` (the widest) are in tokens.

    `format` names every layer's format and is part of the namespace. With `stores_decoded` a decode
    leaves the caches as a prefill would, so answers become blocks too. With `refers` caches and
    blocks share the same bytes, but a sequence may copy its first `copies` stored tokens.
    """

    kinds: frozenset[LayerKind]
    block_size: int
    window: int = 0
    format: str = ""
    stores_decoded: bool = True
    refers: bool = False
    copies: int = 0

    @property
    def keeps(self) -> bool:
        """Whether anything of a sequence becomes a block or a checkpoint."""
        return bool(self.kinds)

    def namespace(self, weights: str) -> str:
        """Return the namespace of the blocks that these `weights` (a fingerprint) compute."""
        return f"{weights}|{self.format}|{self.block_size}"

    @property
    def checkpointed(self) -> bool:
        """Whether a restore is possible at checkpoints only."""
        return LayerKind.CHECKPOINT in self.kinds


NOTHING_KEPT = CacheLayout(frozenset(), block_size=64, stores_decoded=False)
"""The layout of a model whose caches can't be cut into blocks."""
