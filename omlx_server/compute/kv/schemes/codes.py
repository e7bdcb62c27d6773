"""The levels of a codebook as whole numbers, for MLX's quantised products.

`mx.quantized_matmul` multiplies with numbers scale * code + bias, and the levels of a codebook are
not evenly spaced. So each index becomes a code of 8 bits on an even grid that has a number near
every level:
    level ~ step * (code - zero)
The mean squared error of 4 bits grows by 0.11 % of itself, that of other bits by less than 0.01 %.
The levels of 8 bits take two codes each, for the high and the low byte of a number of 16 bits. They
lie side by side, so that one product reads both.

A stored byte becomes its codes by one look-up in a table, so reading a layer takes the same few
kernels whatever its length.
"""

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
"""The group sizes of MLX's quantised products, largest first."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_TRIED = 4001


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """The codes of each index of a codebook: one of 2, 3 or 4 bits, two of 8 bits. A level is
    step * (code - zero), or with two codes step * (256 * (high - zero) + low - zero). Holds no lazy
    array, so it may be used from any thread."""

    step: float
    zero: float
    table: mx.array
    """[256]: for each byte the codes of the indices in it, as one unsigned integer. The code of the
    first index, or its high one, is the lowest byte."""
    each: int
    """How many codes an index has."""


@cache
def coding(bits: int) -> Coding:
    """The codes for the codebook of 2, 3, 4 or 8 bits."""
    step, zero, codes = _grid(bits)
    if bits <= 4:
        return Coding(step, zero, _table(bits, codes[:, None]), 1)
    both = np.stack([codes >> _CODE_BITS, codes & 0xFF], axis=-1)
    return Coding(step, 0xFF / 2, _table(bits, both), 2)


def products(rows: mx.array, stored: Arrays, bits: int, *, transpose: bool) -> mx.array:
    """Products of rows f32 [B, H, R, N] with stored vectors, which are (words u32 [B, H, T, W],
    scales f16 [B, H, T, 1]): with `transpose` the inner products [B, H, R, T], and N is at most
    what W words hold; otherwise the sums [B, H, R, D] with N = T weights, where D is what W words
    hold or a little more."""
    words, scales = stored
    each = coding(bits).each
    count = packing.capacity(words.shape[-1], bits) * each
    # Quantised products take whole groups.
    whole = -(-count // _GROUP_SIZES[-1]) * _GROUP_SIZES[-1]
    group = next(size for size in _GROUP_SIZES if whole % size == 0)
    if transpose:
        rows = _padded(rows if each == 1 else (rows[..., None] * _bytes()).flatten(-2), whole)
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
    """The codes u8 of the indices in words u32 [..., W]: [..., D], or of 8 bits [..., 2 D]."""
    units = (packing.nibbles(words) if bits == 3 else words).view(mx.uint8)
    return coding(bits).table[units].view(mx.uint8)


@partial(mx.compile, shapeless=True)
def _multiplied(scales: mx.array, steps: mx.array) -> mx.array:
    """The scales and biases f32 [2, B, H, T, groups] of the codes of vectors, whose scales are f16
    [1, B, H, T, 1], in one kernel."""
    return scales.astype(mx.float32) * steps


@cache
def _steps(bits: int, groups: int) -> mx.array:
    """The scale and the bias of codes where the scale of a vector is 1: f32
    [2, 1, 1, 1, groups]."""
    step, zero = coding(bits).step, coding(bits).zero
    column = np.array([step, -step * zero], dtype=np.float32).reshape(-1, 1, 1, 1, 1)
    return mx.array(np.repeat(column, groups, axis=-1))


@cache
def _bytes() -> mx.array:
    """What the high and the low byte of a number are worth, f32 [2]."""
    return mx.array(np.array([256, 1], dtype=np.float32))


@partial(mx.compile, shapeless=True)
def _of_bytes(high: mx.array, low: mx.array) -> mx.array:
    return high * 256 + low


def _padded(x: mx.array, width: int) -> mx.array:
    """The array with its last axis filled up with zeros."""
    missing = width - x.shape[-1]
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def _table(bits: int, codes: np.ndarray) -> mx.array:
    """The table of a `Coding`, from the codes [2**bits, each] of each index."""
    # The first index of a byte is in its lowest bits. Those of 3 bits come in 4.
    shifts = np.arange(0, _CODE_BITS, 4 if bits == 3 else bits)
    index = np.arange(256)[:, None] >> shifts & (1 << bits) - 1
    joined = np.ascontiguousarray(codes.astype(np.uint8)[index]).reshape(256, -1)
    return mx.array(joined.view(_WORDS[joined.shape[1]])[:, 0])


def _grid(bits: int) -> tuple[float, float, np.ndarray]:
    """The step, the zero and the codes, ascending, of the grid that is nearest to the levels: codes
    of 8 bits around 128 or 127.5, or for the levels of 8 bits, codes of 16 around 32767.5."""
    zeros = (128.0, 127.5) if bits <= 4 else (32767.5,)
    _, step, zero, above = min((_nearest(bits, zero) for zero in zeros), key=itemgetter(0))
    return step, zero, np.concatenate([2 * zero - above[::-1], above]).astype(np.int64)


def _nearest(bits: int, zero: float) -> tuple[float, float, float, np.ndarray]:
    """The error, the step and the zero of the best of many grids, and the codes of the positive
    levels. The grids differ in the code of the largest level."""
    half = 1 << bits >> 1
    positive, mass = codebook.levels(bits)[half:], codebook.masses(bits)[half:]
    reach = math.ceil(zero) - 1 + zero % 1  # codes from zero - reach to zero + reach
    step = positive[-1] / np.linspace(reach / 2, reach, _TRIED)[:, None]
    code = np.clip(np.round(positive / step + zero), np.floor(zero) + 1, zero + reach) - zero
    step = (mass * code * positive).sum(axis=1) / (mass * code * code).sum(axis=1)
    errors = (mass * (code * step[:, None] - positive) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return float(errors[best]), float(step[best]), zero, code[best] + zero
