"""What the layers of a model remember, as far as decisions about blocks need to know.

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
    """`block_size` and `window` are in tokens; `window` is the widest of all WINDOW ones. `format`
    names every layer's format; blocks of another format are in another namespace. With
    `stores_decoded` a decode leaves the caches as a prefill of the same tokens would, so that
    answers become blocks as well. With `refers` the caches of a sequence and its blocks hold the
    same bytes: there is no copy of them; but a sequence that begins with up to `copies` stored
    tokens may have a copy."""

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
        """The namespace of blocks that these `weights` (a fingerprint) have computed: blocks of
        another format or size are in another one."""
        return f"{weights}|{self.format}|{self.block_size}"

    @property
    def checkpointed(self) -> bool:
        """Whether a restore is possible at checkpoints only."""
        return LayerKind.CHECKPOINT in self.kinds


NOTHING_KEPT = CacheLayout(frozenset(), block_size=64, stores_decoded=False)
"""The layout of a model whose caches can't be cut: no blocks, so no prompt waits for one."""
