"""Small indices side by side in 32-bit words, along the last axis.

    bits 2, 4, 8   one plane: 8 / bits values in each byte, the first in the lowest bits
    bits 1, 3      as many planes of single bits, one after the other, the lowest bit of the values
                   first: a byte of each plane belongs to 8 values, the first in its highest bit
Four bytes are a word. A last axis that does not fill its words is padded with zeros.

A byte of a plane becomes its values by integer arithmetic on one wide lane that has a byte for
each: far cheaper than a shift for each value.
"""

from collections.abc import Callable
from functools import cache

import mlx.core as mx
import numpy as np

BITS = (1, 2, 3, 4, 8)

_LANES = {1: mx.uint64, 2: mx.uint32, 3: mx.uint64, 4: mx.uint16, 8: mx.uint8}
# Times a byte: its bit 7 - i comes to bit 8i + 7. Times eight bytes of one bit each: that of byte i
# comes to bit 63 - i, and none carries into another.
_SPREAD = mx.array(np.array(0x8040201008040201, dtype=np.uint64))
_LOWEST = mx.array(np.array(0x0101010101010101, dtype=np.uint64))


def words(dim: int, bits: int) -> int:
    """How many words hold `dim` values. ValueError for bits that have no layout."""
    return _planes(bits) * -(-dim // _per_plane_word(bits))


def capacity(count: int, bits: int) -> int:
    """How many values `count` words hold."""
    return count // _planes(bits) * _per_plane_word(bits)


def pack(index: mx.array, bits: int) -> mx.array:
    """index u8 [..., dim], below 2**bits, as u32 [..., words(dim, bits)]."""
    *lead, dim = index.shape
    missing = capacity(words(dim, bits), bits) - dim
    if missing:
        index = mx.pad(index, [(0, 0)] * len(lead) + [(0, missing)])
    planes = _joiner(bits)(mx.contiguous(index).view(_LANES[bits]))
    return mx.concatenate(planes, axis=-1).view(mx.uint32)


def unpack(packed: mx.array, bits: int) -> mx.array:
    """Undo `pack`: u32 [..., words] as u8 [..., capacity(words, bits)], contiguous. Values past
    the dim that was packed are 0."""
    units = mx.contiguous(packed).view(mx.uint8)
    if bits == 8:
        return units
    planes = mx.split(units, _planes(bits), axis=-1)
    return _spreader(bits)(*map(mx.contiguous, planes)).view(mx.uint8)


@cache
def _spreader(bits: int) -> Callable[..., mx.array]:
    """Planes of bytes, as many arguments, to lanes with a byte for each value."""

    def spread(*planes: mx.array) -> mx.array:
        lanes = planes[0].astype(_LANES[bits])
        if bits == 4:
            return (lanes | (lanes << 4)) & 0x0F0F
        if bits == 2:
            lanes = (lanes | (lanes << 12)) & 0x000F000F
            return (lanes | (lanes << 6)) & 0x03030303
        return _joined([_bytes_of(plane) << k for k, plane in enumerate(planes)])

    spreader: Callable[..., mx.array] = mx.compile(spread, shapeless=True)
    return spreader


def _bytes_of(plane: mx.array) -> mx.array:
    """u8, eight single bits each, as u64 of eight bytes."""
    return ((plane.astype(mx.uint64) * _SPREAD) >> 7) & _LOWEST


@cache
def _joiner(bits: int) -> Callable[[mx.array], list[mx.array]]:
    """From wide lanes with a byte for each value to planes of bytes."""

    def join(lanes: mx.array) -> list[mx.array]:
        if bits == 4:
            lanes = lanes | (lanes >> 4)
        elif bits == 2:
            lanes = (lanes | (lanes >> 6)) & 0x000F000F
            lanes = lanes | (lanes >> 12)
        elif bits != 8:
            each = [((lanes >> k) & _LOWEST) * _SPREAD >> 56 for k in range(_planes(bits))]
            return [plane.astype(mx.uint8) for plane in each]
        return [lanes.astype(mx.uint8)]

    joiner: Callable[[mx.array], list[mx.array]] = mx.compile(join, shapeless=True)
    return joiner


def _joined(parts: list[mx.array]) -> mx.array:
    lanes = parts[0]
    for part in parts[1:]:
        lanes = lanes | part
    return lanes


def _planes(bits: int) -> int:
    return bits if bits in (1, 3) else 1


def _per_plane_word(bits: int) -> int:
    """Values that share a word of each plane."""
    if bits not in BITS:
        raise ValueError(f"no packing for {bits} bits: one of {BITS}")
    return 32 // (bits // _planes(bits))
