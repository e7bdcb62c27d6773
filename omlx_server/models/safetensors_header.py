"""Reads the headers of safetensors files, and no weights. Any thread."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import msgspec

_LENGTH_BYTES = 8
# The longest header that MLX reads.
_MOST_HEADER_BYTES = 1 << 25


class TensorHeader(msgspec.Struct):
    """`data_offsets` count from the end of the header."""

    data_offsets: tuple[int, int] = (0, 0)
    dtype: str = ""
    shape: tuple[int, ...] = ()


# MLX writes null where there are no metadata.
_HEADER = msgspec.json.Decoder(dict[str, TensorHeader | None])
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The `tensors` of a file, of `numbers` values, whose data begin at the byte `data_start`. The
    file has `nbytes` of `whole_bytes`."""

    tensors: Mapping[str, TensorHeader]
    nbytes: int
    whole_bytes: int
    data_start: int
    numbers: int = 0


def read_header(file: Path) -> SafetensorsHeader | None:
    """Return the header, if any. Raises OSError or ValueError. Format:
    https://github.com/huggingface/safetensors"""
    with file.open("rb") as opened:
        return header_of(opened)


def header_of(opened: BinaryIO) -> SafetensorsHeader | None:
    nbytes = os.fstat(opened.fileno()).st_size
    length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
    if not 0 < length <= min(nbytes - _LENGTH_BYTES, _MOST_HEADER_BYTES):
        return None
    entries = _HEADER.decode(opened.read(length))
    ends = max((tensor.data_offsets[1] for tensor in entries.values() if tensor), default=0)
    tensors = {name: one for name, one in entries.items() if one and name != _METADATA}
    numbers = sum(prod(one.shape) for one in tensors.values())
    start = _LENGTH_BYTES + length
    return SafetensorsHeader(tensors, nbytes, start + ends, start, numbers)
