"""Reads a GGUF file: its fields, and its tensors as float32 arrays. Its sha256 was checked."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from omlx_server.core.gguf.head import GgufHead, TensorPlace, parse_head

Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


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


# By the name of a type: uint8 [n, bytes of a block] to float32 [n, values of a block].
_UNPACK: dict[str, Callable[[Bytes], Array]] = {
    "F32": lambda blocks: blocks.view("<f4").astype(np.float32),
    "F16": _halves,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The file's bytes are mapped."""

    head: GgufHead
    data: Bytes

    def values(self, place: TensorPlace) -> Array:
        blocks = self.data[place.start : place.start + place.nbytes]
        unpack = _UNPACK[place.kind.name]
        return unpack(blocks.reshape(-1, place.kind.nbytes)).reshape(place.shape)


def read_gguf(path: Path) -> GgufFile:
    """Raises OSError, and ValueError for a bad file."""
    with path.open("rb") as stream:
        head = parse_head(stream, path.stat().st_size)
    return GgufFile(head, np.asarray(np.memmap(path, np.uint8, "r")))
