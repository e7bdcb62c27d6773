"""The levels of a codebook as 8-bit codes on an even grid, for MLX's quantised products: level ~
step * (code - zero). Levels of 8 bits take two codes, for the high and the low byte of 16 bits."""

import math
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter

import mlx.core as mx
import numpy as np

from omlx_server.compute.kv.schemes import codebook, packing
from omlx_server.compute.kv.schemes.base import Arrays

_CODE_BITS = 8
_GROUP_SIZES = (128, 64, 32)
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_TRIED = 4001
# What the high and the low byte of a number are worth.
_BYTES = mx.array(np.array([256, 1], dtype=np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """The codes of each index; of 8 bits two, with level = step * (256 * (high - zero) + low -
    zero)."""

    step: float
    zero: float
    table: mx.array
    """[256]: the codes of the indices in each byte as one integer, the first (or high) one
    lowest."""
    each: int
    """The number of codes of an index."""


@cache
def coding(bits: int) -> Coding:
    step, zero, codes = _grid(bits)
    if bits <= 4:
        return Coding(step, zero, _table(bits, codes[:, None]), 1)
    both = np.stack([codes >> _CODE_BITS, codes & 0xFF], axis=-1)
    return Coding(step, 0xFF / 2, _table(bits, both), 2)


def products(rows: mx.array, stored: Arrays, bits: int, *, transpose: bool) -> mx.array:
    """Multiply rows f32 [B, H, R, N] with stored (words u32 [B, H, T, W], scales f16 [B, H, T, 1]).

    With `transpose` return inner products [B, H, R, T], otherwise sums [B, H, R, D] for N = T.
    """
    words, scales = stored
    each = coding(bits).each
    count = packing.capacity(words.shape[-1], bits) * each
    # Quantised products take whole groups.
    whole = -(-count // _GROUP_SIZES[-1]) * _GROUP_SIZES[-1]
    group = next(size for size in _GROUP_SIZES if whole % size == 0)
    if transpose:
        rows = _padded(rows if each == 1 else (rows[..., None] * _BYTES).flatten(-2), whole)
    # Two views: an index would be a kernel.
    scale, bias = _multiplied(scales[None], _steps(bits, whole // group))
    product = mx.quantized_matmul(
        rows,
        _padded(_codes(words, bits), whole).view(mx.uint32),
        scale,
        bias,
        transpose=transpose,
        group_size=group,
        bits=_CODE_BITS,
    )
    if transpose or each == 1:
        return product
    summed: mx.array = _of_bytes(product[..., ::2], product[..., 1::2])
    return summed


def _codes(words: mx.array, bits: int) -> mx.array:
    units = (packing.nibbles(words) if bits == 3 else words).view(mx.uint8)
    return coding(bits).table[units].view(mx.uint8)


@partial(mx.compile, shapeless=True)
def _multiplied(scales: mx.array, steps: mx.array) -> mx.array:
    """Return f32 [2, B, H, T, groups] for scales f16 [1, B, H, T, 1]."""
    return scales.astype(mx.float32) * steps


@cache
def _steps(bits: int, groups: int) -> mx.array:
    """Return scale and bias f32 [2, 1, 1, 1, groups] for a vector of scale 1."""
    step, zero = coding(bits).step, coding(bits).zero
    column = np.array([step, -step * zero], dtype=np.float32).reshape(-1, 1, 1, 1, 1)
    return mx.array(np.repeat(column, groups, axis=-1))


@partial(mx.compile, shapeless=True)
def _of_bytes(high: mx.array, low: mx.array) -> mx.array:
    return high * 256 + low


def _padded(x: mx.array, width: int) -> mx.array:
    missing = width - x.shape[-1]
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def _table(bits: int, codes: np.ndarray) -> mx.array:
    # The first index of a byte is in its lowest bits. Those of 3 bits come in 4.
    shifts = np.arange(0, _CODE_BITS, 4 if bits == 3 else bits)
    index = np.arange(256)[:, None] >> shifts & (1 << bits) - 1
    joined = np.ascontiguousarray(codes.astype(np.uint8)[index]).reshape(256, -1)
    return mx.array(joined.view(_WORDS[joined.shape[1]])[:, 0])


def _grid(bits: int) -> tuple[float, float, np.ndarray]:
    zeros = (128.0, 127.5) if bits <= 4 else (32767.5,)
    _, step, zero, above = min((_nearest(bits, zero) for zero in zeros), key=itemgetter(0))
    return step, zero, np.concatenate([2 * zero - above[::-1], above]).astype(np.int64)


def _nearest(bits: int, zero: float) -> tuple[float, float, float, np.ndarray]:
    half = 1 << bits >> 1
    positive, mass = codebook.levels(bits)[half:], codebook.masses(bits)[half:]
    reach = math.ceil(zero) - 1 + zero % 1  # codes from zero - reach to zero + reach
    step = positive[-1] / np.linspace(reach / 2, reach, _TRIED)[:, None]
    code = np.clip(np.round(positive / step + zero), np.floor(zero) + 1, zero + reach) - zero
    step = (mass * code * positive).sum(axis=1) / (mass * code * code).sum(axis=1)
    errors = (mass * (code * step[:, None] - positive) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return float(errors[best]), float(step[best]), zero, code[best] + zero
