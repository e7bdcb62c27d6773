"""A block or checkpoint as bytes, as it goes to the cold tier and back.

record    which tokens it covers, after which block: everything its key says
packed    its arrays, as raw bytes with a type and a shape each
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from omlx_server.core.blocks.block import Block, Held
from omlx_server.core.blocks.keys import BlockKey, block_key, checkpoint_key


class RecordKind(StrEnum):
    BLOCK = "block"
    CHECKPOINT = "state"


@dataclass(frozen=True)  # without slots, for the cached key
class Record:
    """Tokens [start, stop) after the block with key `parent`, or after the root key where `start`
    is 0. A checkpoint has a `worth` (core/blocks/block.py)."""

    namespace: str
    parent: BlockKey
    start: int
    tokens: tuple[int, ...]
    part: RecordKind = RecordKind.BLOCK
    worth: int = 0

    @classmethod
    def of(cls, held: Held, namespace: str) -> "Record":
        """Return the record of a block or a checkpoint in memory."""
        block = held if isinstance(held, Block) else held.block
        assert block.parent is not None
        parent, start = block.parent.key, block.start
        if isinstance(held, Block):
            return cls(namespace, parent, start, block.tokens)
        tokens = block.tokens[: held.position - start]
        return cls(namespace, parent, start, tokens, RecordKind.CHECKPOINT, int(held.worth))

    @cached_property
    def key(self) -> BlockKey:
        make = block_key if self.part is RecordKind.BLOCK else checkpoint_key
        return make(self.parent, self.tokens)

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class RecordTensor:
    """One array in row-major order. `dtype` is a safetensors name (F32, BF16, U32 …); `data` is any
    contiguous buffer, for a stored block the array's own memory."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class PackedArrays:
    """The arrays of a block or checkpoint. `places` gives for each array of each layer (number of
    the tensor, index on its first axis)."""

    tensors: Sequence[RecordTensor]
    places: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)
