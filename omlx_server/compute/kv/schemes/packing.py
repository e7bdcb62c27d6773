"""Packs small indices into 32-bit words along the last axis, padded with zeros.

bits 2, 4, 8   one plane: 8 / bits values in each byte, the first in the lowest bits
bits 1, 3      a plane for each bit, lowest first: a byte holds that bit of 8 values, the first
               in its highest bit
"""

from collections.abc import Callable
from functools import cache, partial

import mlx.core as mx
import numpy as np

BITS = (1, 2, 3, 4, 8)

_LANES = {1: mx.uint64, 2: mx.uint32, 3: mx.uint64, 4: mx.uint16, 8: mx.uint8}
# A byte times `_SPREAD` has its bit 7 - i at bit 8i + 7. Eight bytes of one bit each, times
# `_SPREAD`, have the bit of byte i at bit 63 - i. No bit carries into another.
_SPREAD = mx.array(np.array(0x8040201008040201, dtype=np.uint64))
_LOWEST = mx.array(np.array(0x0101010101010101, dtype=np.uint64))
# Each byte of a plane as a word with a nibble for each bit, that of the highest bit lowest.
_NIBBLES = mx.array(
    sum((np.arange(256, dtype=np.uint32) >> (7 - i) & 1) << 4 * i for i in range(8))
)


def words(dim: int, bits: int) -> int:
    """Return how many words hold `dim` values. Raises ValueError for other bits."""
    return _plane_count(bits) * -(-dim // _values_per_plane_word(bits))


def capacity(count: int, bits: int) -> int:
    """Return how many values `count` words hold."""
    return count // _plane_count(bits) * _values_per_plane_word(bits)


def pack(index: mx.array, bits: int) -> mx.array:
    """Pack an index u8 [..., dim], below 2**bits, into u32 [..., words(dim, bits)]."""
    *lead, dim = index.shape
    missing = capacity(words(dim, bits), bits) - dim
    if missing:
        index = mx.pad(index, [(0, 0)] * len(lead) + [(0, missing)])
    lanes = mx.contiguous(index).view(_LANES[bits])
    if bits in (1, 3):
        return _to_planes(lanes[..., None, :], _bit_numbers(bits)).flatten(-2).view(mx.uint32)
    return _joiner(bits)(lanes).view(mx.uint32)


def unpack(packed: mx.array, bits: int) -> mx.array:
    """Unpack u32 [..., words] into contiguous u8 [..., capacity(words, bits)]."""
    units = mx.contiguous(packed).view(mx.uint8)
    if bits == 8:
        return units
    planes = mx.split(units, _plane_count(bits), axis=-1)
    return _spreader(bits)(*map(mx.contiguous, planes)).view(mx.uint8)


def nibbles(packed: mx.array) -> mx.array:
    """Repack words of 3 bits into words of 4 bits a value."""
    units = packed.view(mx.uint8)
    planes = _NIBBLES[units.reshape(*units.shape[:-1], 3, -1)]
    in_nibbles: mx.array = _join_nibbles(planes[..., 0, :], planes[..., 1, :], planes[..., 2, :])
    return in_nibbles


@partial(mx.compile, shapeless=True)
def _join_nibbles(low: mx.array, middle: mx.array, high: mx.array) -> mx.array:
    return low | (middle << 1) | (high << 2)


@cache
def _spreader(bits: int) -> Callable[..., mx.array]:
    def spread(*planes: mx.array) -> mx.array:
        lanes = planes[0].astype(_LANES[bits])
        if bits == 4:
            return (lanes | (lanes << 4)) & 0x0F0F
        if bits == 2:
            lanes = (lanes | (lanes << 12)) & 0x000F000F
            return (lanes | (lanes << 6)) & 0x03030303
        return _or_all([_bits_to_bytes(plane) << k for k, plane in enumerate(planes)])

    spreader: Callable[..., mx.array] = mx.compile(spread, shapeless=True)
    return spreader


def _bits_to_bytes(plane: mx.array) -> mx.array:
    return ((plane.astype(mx.uint64) * _SPREAD) >> 7) & _LOWEST


@cache
def _joiner(bits: int) -> Callable[[mx.array], mx.array]:
    def join(lanes: mx.array) -> mx.array:
        if bits == 4:
            lanes = lanes | (lanes >> 4)
        elif bits == 2:
            lanes = (lanes | (lanes >> 6)) & 0x000F000F
            lanes = lanes | (lanes >> 12)
        return lanes.astype(mx.uint8)

    joiner: Callable[[mx.array], mx.array] = mx.compile(join, shapeless=True)
    return joiner


@partial(mx.compile, shapeless=True)
def _to_planes(lanes: mx.array, order: mx.array) -> mx.array:
    return ((lanes >> order & _LOWEST) * _SPREAD >> 56).astype(mx.uint8)


@cache
def _bit_numbers(bits: int) -> mx.array:
    return mx.array(np.arange(bits, dtype=np.uint64)[:, None])


def _or_all(parts: list[mx.array]) -> mx.array:
    lanes = parts[0]
    for part in parts[1:]:
        lanes = lanes | part
    return lanes


def _plane_count(bits: int) -> int:
    return bits if bits in (1, 3) else 1


def _values_per_plane_word(bits: int) -> int:
    if bits not in BITS:
        raise ValueError(f"no packing for {bits} bits: one of {BITS}")
    return 32 // (bits // _plane_count(bits))
