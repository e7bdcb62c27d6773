"""Unpacks the codes of `mx.quantize` into numbers. MLX's own CPU kernels unpack them one by one; as
bit fields of whole arrays they take a tenth of the time.

    bits 2, 4, 8   8 / bits codes in each byte, the first code in the lowest bits
    bits 3, 6      24 / bits codes in three bytes, likewise; the first byte has the lowest bits
"""

from collections.abc import Callable, Sequence
from functools import cache

import mlx.core as mx


def count(bits: int) -> int:
    """Into how many columns the codes of one vector are dealt: as many as share one or three
    bytes."""
    return (8 if 8 % bits == 0 else 24) // bits


def columns(packed: mx.array, bits: int) -> Sequence[mx.array]:
    """The codes in `packed`, u32 [..., D * bits / 32], as n = count(bits) arrays f32 [..., D / n].
    The i-th array holds the codes of coordinates i, i + n, i + 2n and so on."""
    units = packed.view(mx.uint8)
    if 8 % bits:
        triples = units.reshape(*units.shape[:-1], -1, 3)
        units = _join()(triples[..., 0], triples[..., 1], triples[..., 2])
    unpacked: Sequence[mx.array] = _split(bits)(units)
    return unpacked


@cache
def _split(bits: int) -> Callable[[mx.array], Sequence[mx.array]]:
    shifts = [bits * i for i in range(count(bits))]
    lowest = (1 << bits) - 1

    def split(units: mx.array) -> list[mx.array]:
        return [((units >> shift) & lowest).astype(mx.float32) for shift in shifts]

    return mx.compile(split, shapeless=True)  # sizes change with every token


@cache
def _join() -> Callable[[mx.array, mx.array, mx.array], mx.array]:
    def join(low: mx.array, middle: mx.array, high: mx.array) -> mx.array:
        wide = [unit.astype(mx.uint32) for unit in (low, middle, high)]
        return wide[0] | (wide[1] << 8) | (wide[2] << 16)

    return mx.compile(join, shapeless=True)
