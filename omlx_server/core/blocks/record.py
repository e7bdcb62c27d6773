"""A block or checkpoint as bytes: what crosses from the mlx thread to the cold tier and back.

    record    which tokens it covers, after which block: everything its key says
    packed    its arrays, as raw bytes with a type and a shape each

No two records have the same key, so hashing a record shows whether it belongs to a given key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from omlx_server.core.blocks.block import Block, Held
from omlx_server.core.blocks.keys import BlockKey, block_key, checkpoint_key


class RecordKind(StrEnum):
    """What a record holds: the tokens of a block, or recurrent state after its last token."""

    BLOCK = "block"
    CHECKPOINT = "state"


@dataclass(frozen=True)  # without slots, for the cached key
class Record:
    """Tokens [start, start + len(tokens)) of every sequence whose block before them has the key
    `parent`, or the root key where `start` is 0. `worth` is that of a checkpoint
    (core/blocks/block.py)."""

    namespace: str
    parent: BlockKey
    start: int
    tokens: tuple[int, ...]
    part: RecordKind = RecordKind.BLOCK
    worth: int = 0

    @classmethod
    def of(cls, held: Held, namespace: str) -> "Record":
        """What the cold tier has to know of a block or a checkpoint."""
        block = held if isinstance(held, Block) else held.block
        assert block.parent is not None
        parent, start = block.parent.key, block.start
        if isinstance(held, Block):
            return cls(namespace, parent, start, block.tokens)
        tokens = block.tokens[: held.position - start]
        return cls(namespace, parent, start, tokens, RecordKind.CHECKPOINT, int(held.worth))

    @cached_property
    def key(self) -> BlockKey:
        """The key, which is hashed once only, since everybody who handles a record asks for it."""
        make = block_key if self.part is RecordKind.BLOCK else checkpoint_key
        return make(self.parent, self.tokens)

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class RecordTensor:
    """One array in row-major order. `dtype` by its safetensors name: F32, BF16, F16, U32, I64 …

    `data` is any contiguous buffer of bytes; that of a stored block is the array's own memory.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class PackedArrays:
    """The arrays of a block or checkpoint. `places` says for each array of each layer where it is:
    (number of the tensor, index on its first axis)."""

    tensors: Sequence[RecordTensor]
    places: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)
