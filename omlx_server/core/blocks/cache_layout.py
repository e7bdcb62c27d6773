"""The kinds of layers of a model, by what their caches keep of a sequence."""

from dataclasses import dataclass
from enum import StrEnum


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
