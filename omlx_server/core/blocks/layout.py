"""What the layers of a model remember, as far as decisions about blocks need to know.

DELTA       needed for every token from 0 on: ordinary and quantized KV
WINDOW      needed for the last `window` tokens only: sliding attention
CHECKPOINT  needed at the exact boundary: recurrent state
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    DELTA = "delta"
    WINDOW = "window"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """`window` in tokens, the widest of all WINDOW layers. `format` names every layer's format:
    blocks of another format are of another namespace. `stores_decoded`: a decode leaves what a
    prefill of the same tokens would, so that answers become blocks as well."""

    kinds: frozenset[Kind]
    block_size: int
    window: int = 0
    format: str = ""
    stores_decoded: bool = True

    @property
    def checkpointed(self) -> bool:
        """Whether a restore is possible at checkpoints only."""
        return Kind.CHECKPOINT in self.kinds
