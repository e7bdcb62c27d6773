"""A block or checkpoint as it goes to the cold tier and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from omlx_server.core.blocks.block import Block, CacheEntry
from omlx_server.core.blocks.keys import BlockKey, block_key, checkpoint_key


class RecordKind(StrEnum):
    BLOCK = "block"
    CHECKPOINT = "state"


@dataclass(frozen=True)  # without slots, for the cached key
class Record:
    """Tokens [start, stop) after the block (or root) with key `parent`."""

    namespace: str
    parent: BlockKey
    start: int
    tokens: tuple[int, ...]
    part: RecordKind = RecordKind.BLOCK
    worth: int = 0

    @classmethod
    def of(cls, entry: CacheEntry, namespace: str) -> "Record":
        block = entry if isinstance(entry, Block) else entry.block
        assert block.parent is not None
        parent, start = block.parent.key, block.start
        if isinstance(entry, Block):
            return cls(namespace, parent, start, block.tokens)
        tokens = block.tokens[: entry.position - start]
        return cls(namespace, parent, start, tokens, RecordKind.CHECKPOINT, int(entry.worth))

    @cached_property
    def key(self) -> BlockKey:
        make = block_key if self.part is RecordKind.BLOCK else checkpoint_key
        return make(self.parent, self.tokens)

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class RecordTensor:
    """An array in row-major order. `dtype` is a safetensors name; `data` is contiguous."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class PackedArrays:
    """Arrays of an entry: for each of each layer `places` has (tensor, index on its first axis)."""

    tensors: Sequence[RecordTensor]
    places: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Recalled:
    """The result of a read: the block, of a file of `nbytes`, or the `reason` why there is none."""

    record: Record
    packed: PackedArrays | None = None
    reason: str = ""
    nbytes: int = 0
    seconds: float = 0.0


PASSING = ("timeout", "unreachable")
"""Reasons why a read fails though the block is still stored, and can be read another time."""
