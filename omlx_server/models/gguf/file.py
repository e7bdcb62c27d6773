"""Reads a GGUF file: its metadata, and its tensors as float32 arrays.

Layout, all numbers little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):

    "GGUF"  version  number of tensors  number of fields
    fields: name, type, value
    tensors: name, shape (fastest dimension first), type, offset in the data
    padding up to `general.alignment`
    data of the tensors

Versions 2 and 3 are read, and the four types of tensors in `_TYPES`. The `gguf` package is the
oracle of the tests.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_BLOCK = 32
"""Values of a quantised block."""
# By the number of its type; a text is 8 and a list 9.
_NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_TEXT, _LIST = 8, 9
_LONGEST_SHAPE = 4


@dataclass(frozen=True, slots=True)
class _Type:
    """How a tensor's values lie in the file: `block` values in `nbytes` bytes. `unpack` takes rows
    of blocks, uint8 [n, nbytes], and gives float32 [n, block]."""

    block: int
    nbytes: int
    unpack: Callable[[Bytes], Array]


def _halves(blocks: Bytes) -> Array:
    return blocks.view("<f2").astype(np.float32)


def _q8_0(blocks: Bytes) -> Array:
    """A scale in float16, then 32 values in int8."""
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _halves(blocks[:, :2])


def _q4_1(blocks: Bytes) -> Array:
    """A scale and a minimum in float16, then 32 values of 4 bits: the low halves of 16 bytes come
    before the high ones."""
    packed = blocks[:, 4:]
    values = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return values * _halves(blocks[:, :2]) + _halves(blocks[:, 2:4])


_TYPES = {
    0: _Type(1, 4, lambda blocks: blocks.view("<f4").astype(np.float32)),
    1: _Type(1, 2, _halves),
    3: _Type(_BLOCK, 20, _q4_1),
    8: _Type(_BLOCK, 34, _q8_0),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor. `shape` has its rows first; `data` are its bytes, which lie in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: Bytes

    def values(self) -> Array:
        """All values in float32, of its shape."""
        kind = _TYPES[self.kind]
        return kind.unpack(self.data.reshape(-1, kind.nbytes)).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The fields of a file by name, and its tensors in their order."""

    fields: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_gguf(path: Path) -> GgufFile:
    """Read the fields, and map the tensors. Raises ValueError for a file that is damaged, or of a
    kind that is not known."""
    cursor = _Cursor(np.asarray(np.memmap(path, np.uint8, "r")))
    if cursor.take(4).tobytes() != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    if (version := cursor.number("<I")) not in _VERSIONS:
        raise ValueError(f"its version is {version}, only 2 and 3 are known")
    n_tensors, n_fields = cursor.number("<Q"), cursor.number("<Q")
    fields = {cursor.text(): cursor.value() for _ in range(n_fields)}
    headers = [_header(cursor) for _ in range(n_tensors)]
    alignment = fields.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {alignment}")
    start = math.ceil(cursor.at / alignment) * alignment
    return GgufFile(fields, tuple(_tensor(cursor, start, *header) for header in headers))


class _Cursor:
    """A place in the bytes of a file. Each method takes what it returns, and raises ValueError
    where the file ends before."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, nbytes: int) -> Bytes:
        if nbytes > len(self._data) - self.at:
            raise ValueError("it ends too early")
        self.at += nbytes
        return self._data[self.at - nbytes : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)).tobytes())[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).tobytes().decode("utf-8")

    def value(self) -> Any:
        return self._of(self.number("<I"))

    def _of(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            of, length = self.number("<I"), self.number("<Q")
            if of == _LIST:
                raise ValueError("it has a list of lists")
            return [self._of(of) for _ in range(length)]
        if kind not in _NUMBERS:
            raise ValueError(f"it has a field of type {kind}")
        return self.number(_NUMBERS[kind])


def _header(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset of a tensor."""
    name, dimensions = cursor.text(), cursor.number("<I")
    if dimensions > _LONGEST_SHAPE:
        raise ValueError(f"{name} has {dimensions} dimensions")
    shape = tuple(cursor.number("<Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.number("<I"), cursor.number("<Q")


def _tensor(
    cursor: _Cursor, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> GgufTensor:
    if kind not in _TYPES:
        raise ValueError(f"{name} is of type {kind}, only F32, F16, Q4_1 and Q8_0 are known")
    known = _TYPES[kind]
    if not shape or shape[-1] % known.block:
        raise ValueError(f"{name} has the shape {shape}, which its type can't have")
    cursor.at = start + offset
    data = cursor.take(math.prod(shape) // known.block * known.nbytes)
    return GgufTensor(name, shape, kind, data)
