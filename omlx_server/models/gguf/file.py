"""Reads a GGUF file: its metadata, and its tensors as float32 arrays. Its sha256 is checked before.

Layout, all numbers little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):

    "GGUF"  version  number of tensors  number of fields
    fields: name, type, value
    tensors: name, shape (fastest dimension first), type, offset in the data
    padding up to `general.alignment`
    data of the tensors
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

_HEAD_BYTES = 8  # the magic and the version
_ALIGNMENT = 32
# By the number of its type; a text is 8 and a list 9.
_NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_TEXT, _LIST = 8, 9


@dataclass(frozen=True, slots=True)
class _Type:
    """`block` values lie in `nbytes` bytes. `unpack` takes uint8 [n, nbytes] and returns float32
    [n, block]."""

    block: int
    nbytes: int
    unpack: Callable[[Bytes], Array]


def _halves(blocks: Bytes) -> Array:
    return blocks.view("<f2").astype(np.float32)


def _q8_0(blocks: Bytes) -> Array:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _halves(blocks[:, :2])


def _q4_1(blocks: Bytes) -> Array:
    """Unpack a scale and a minimum in float16, then 32 values of 4 bits: the low halves come
    first."""
    packed = blocks[:, 4:]
    values = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return values * _halves(blocks[:, :2]) + _halves(blocks[:, 2:4])


_TYPES = {
    0: _Type(1, 4, lambda blocks: blocks.view("<f4").astype(np.float32)),
    1: _Type(1, 2, _halves),
    3: _Type(32, 20, _q4_1),
    8: _Type(32, 34, _q8_0),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` has its rows first; `data` are its bytes, which lie in the file."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: Bytes

    def values(self) -> Array:
        kind = _TYPES[self.kind]
        return kind.unpack(self.data.reshape(-1, kind.nbytes)).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    fields: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_gguf(path: Path) -> GgufFile:
    """Read the fields, and map the tensors."""
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    cursor = _Cursor(data, _HEAD_BYTES)
    n_tensors, n_fields = cursor.number("<Q"), cursor.number("<Q")
    fields = {cursor.text(): cursor.value() for _ in range(n_fields)}
    headers = [_header(cursor) for _ in range(n_tensors)]
    alignment = fields.get("general.alignment", _ALIGNMENT)
    start = math.ceil(cursor.at / alignment) * alignment
    return GgufFile(fields, tuple(_tensor(data[start:], *header) for header in headers))


@dataclass(slots=True)
class _Cursor:
    data: Bytes
    at: int

    def number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self._take(self.number("<Q")).decode("utf-8")

    def value(self) -> Any:
        return self._of(self.number("<I"))

    def _of(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            of, length = self.number("<I"), self.number("<Q")
            return [self._of(of) for _ in range(length)]
        return self.number(_NUMBERS[kind])

    def _take(self, nbytes: int) -> bytes:
        self.at += nbytes
        return self.data[self.at - nbytes : self.at].tobytes()


def _header(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, dimensions = cursor.text(), cursor.number("<I")
    shape = tuple(cursor.number("<Q") for _ in range(dimensions))[::-1]
    return name, shape, cursor.number("<I"), cursor.number("<Q")


def _tensor(data: Bytes, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
    nbytes = math.prod(shape) // _TYPES[kind].block * _TYPES[kind].nbytes
    return GgufTensor(name, shape, kind, data[offset : offset + nbytes])
