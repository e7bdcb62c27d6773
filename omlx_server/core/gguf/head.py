"""Parses the head of a GGUF file. Every length is compared with the bytes that are left.

Layout, all numbers little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):

    "GGUF"  version  number of tensors  number of fields
    fields: name, type, value
    tensors: name, shape (fastest dimension first), type, offset in the data
    padding up to `general.alignment`
    data of the tensors
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT, _MOST_ALIGNMENT = 32, 1 << 16
_MOST_TENSORS, _MOST_FIELDS, _MOST_DIMENSIONS = 1 << 17, 1 << 14, 4
_MOST_VALUES = 1 << 24  # of all lists
_MOST_BYTES = 1 << 62
# By the number of its type; a text is 8 and a list 9.
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TEXT, _LIST = 8, 9


@dataclass(frozen=True, slots=True)
class TensorType:
    """`block` values lie in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


_ROWS = """
0 F32 1 4, 1 F16 1 2, 2 Q4_0 32 18, 3 Q4_1 32 20, 6 Q5_0 32 22, 7 Q5_1 32 24, 8 Q8_0 32 34,
9 Q8_1 32 36, 10 Q2_K 256 84, 11 Q3_K 256 110, 12 Q4_K 256 144, 13 Q5_K 256 176, 14 Q6_K 256 210,
15 Q8_K 256 292, 16 IQ2_XXS 256 66, 17 IQ2_XS 256 74, 18 IQ3_XXS 256 98, 19 IQ1_S 256 50,
20 IQ4_NL 32 18, 21 IQ3_S 256 110, 22 IQ2_S 256 82, 23 IQ4_XS 256 136, 24 I8 1 1, 25 I16 1 2,
26 I32 1 4, 27 I64 1 8, 28 F64 1 8, 29 IQ1_M 256 56, 30 BF16 1 2, 34 TQ1_0 256 54,
35 TQ2_0 256 66, 39 MXFP4 32 17
"""
TYPES = {
    int(number): TensorType(name, int(block), int(nbytes))
    for number, name, block, nbytes in (row.split() for row in _ROWS.split(","))
}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """`shape` has its rows first; the tensor's bytes are [start, start + nbytes) of the file."""

    name: str
    shape: tuple[int, ...]
    kind: TensorType
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHead:
    fields: Mapping[str, Any]
    tensors: tuple[TensorPlace, ...]


def parse_head(stream: BinaryIO, size: int) -> GgufHead:
    """Parse the head of a file of `size` bytes. Raises ValueError, with the reason, for a bad or a
    cut file."""
    try:
        return _Parser(stream, size).head()
    except UnicodeDecodeError:
        raise ValueError("a text in it is not UTF-8") from None


@dataclass(slots=True)
class _Parser:
    stream: BinaryIO
    size: int
    at: int = 0
    values_left: int = _MOST_VALUES

    def head(self) -> GgufHead:
        if self.take(4) != _MAGIC:
            raise ValueError("it is no GGUF file")
        version = self.number("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}; 2 and 3 are known")
        n_tensors = self.count(_MOST_TENSORS, "tensors")
        n_fields = self.count(_MOST_FIELDS, "fields")
        fields = dict[str, Any]()
        for _ in range(n_fields):
            name = self.text()
            if name in fields:
                raise ValueError(f"it has {name[:80]!r} twice")
            fields[name] = self.value()
        headers = [self.tensor() for _ in range(n_tensors)]
        start = _aligned(self.at, fields.get("general.alignment", _ALIGNMENT))
        tensors = tuple(_placed(*header, start, self.size) for header in headers)
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise ValueError("it has a tensor twice")
        return GgufHead(fields, tensors)

    def take(self, nbytes: int) -> bytes:
        data = self.stream.read(nbytes) if nbytes <= self.size - self.at else b""
        if len(data) < nbytes:
            raise ValueError("it is cut")
        self.at += nbytes
        return data

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def count(self, most: int, things: str) -> int:
        count: int = self.number("Q")
        if count > most:
            raise ValueError(f"it says that it has {count} {things}")
        return count

    def text(self) -> str:
        return str(self.take(self.number("Q")), "utf-8")

    def value(self) -> Any:
        kind = self.number("I")
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            return self.list()
        return self.number(_form(kind))

    def list(self) -> list[Any]:
        kind, length = self.number("I"), self.count(self.values_left, "values")
        self.values_left -= length
        if kind == _TEXT:
            return [self.text() for _ in range(length)]
        form = f"<{length}{_form(kind)}"
        return list(struct.unpack(form, self.take(struct.calcsize(form))))

    def tensor(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name, dimensions = self.text(), self.number("I")
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"{name[:80]!r} has {dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(dimensions))[::-1]
        number, offset = self.number("I"), self.number("Q")
        if number not in TYPES:
            raise ValueError(f"{name[:80]!r} is of type {number}, which is not known")
        return name, shape, TYPES[number], offset


def _form(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"it has a value of type {kind}, which is not known")
    return _NUMBERS[kind]


def _aligned(at: int, alignment: Any) -> int:
    is_size = type(alignment) is int and 0 < alignment <= _MOST_ALIGNMENT
    if not is_size or alignment & (alignment - 1):
        raise ValueError(f"its alignment is {alignment!r}")
    return int(-(-at // alignment) * alignment)


def _placed(
    name: str, shape: tuple[int, ...], kind: TensorType, offset: int, start: int, end: int
) -> TensorPlace:
    values = math.prod(shape)
    if not values or values > _MOST_BYTES or shape[-1] % kind.block:
        raise ValueError(f"{name[:80]!r} has the shape {shape}, of type {kind.name}")
    nbytes = values // kind.block * kind.nbytes
    if start + offset + nbytes > end:
        raise ValueError("it is cut")
    return TensorPlace(name, shape, kind, start + offset, nbytes)
