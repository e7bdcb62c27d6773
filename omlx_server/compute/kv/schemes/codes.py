"""The levels of a codebook as whole numbers, for MLX's quantised products.

`mx.quantized_matmul` multiplies with numbers scale * code + bias, and the levels of a codebook are
not evenly spaced. So each index becomes a code of 8 bits on an even grid that has a number near
every level:
    level ~ step * (code - zero)
The mean squared error of 4 bits grows by 0.11 % of itself, that of other bits by less than 0.01 %.
The levels of 8 bits take two codes each, for the high and the low byte of a number of 16 bits.

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
class Plane:
    """One code for each index of a codebook. A level is the sum of step * (code - zero) over its
    planes. Holds no lazy array, so it may be used from any thread."""

    step: float
    zero: float
    table: mx.array
    """[256]: for each byte the codes of the indices in it, as one unsigned integer. The code of the
    first index is its lowest byte."""


@cache
def planes(bits: int) -> tuple[Plane, ...]:
    """One plane for the codebook of 2, 3 or 4 bits, two for that of 8."""
    step, zero, codes = _grid(bits)
    if bits <= 4:
        return (_plane(bits, step, zero, codes),)
    high, low = codes >> _CODE_BITS, codes & 0xFF
    middle = 0xFF / 2
    return _plane(bits, step * 256, middle, high), _plane(bits, step, middle, low)


def products(rows: mx.array, stored: Arrays, bits: int, *, transpose: bool) -> mx.array:
    """Products of rows f32 [B, H, R, N] with stored vectors, which are (words u32 [B, H, T, W],
    scales f16 [B, H, T, 1]): with `transpose` the inner products [B, H, R, T], and N is at most
    what W words hold; otherwise the sums [B, H, R, D] with N = T weights, where D is what W words
    hold or a little more."""
    words, scales = stored
    dim = packing.capacity(words.shape[-1], bits)
    # Quantised products take whole groups.
    whole = -(-dim // _GROUP_SIZES[-1]) * _GROUP_SIZES[-1]
    group = next(size for size in _GROUP_SIZES if whole % size == 0)
    if transpose:
        rows = _padded(rows, whole)
    # A list of views: an index would be a kernel.
    factors = list(_multiplied(scales[None], _steps(bits, whole // group)))
    parts = [
        mx.quantized_matmul(
            rows,
            _padded(codes, whole).view(mx.uint32),
            factors[2 * i],
            factors[2 * i + 1],
            transpose=transpose,
            group_size=group,
            bits=_CODE_BITS,
        )
        for i, codes in enumerate(_codes(words, bits))
    ]
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _codes(words: mx.array, bits: int) -> list[mx.array]:
    """The codes u8 [..., D] of the indices in words u32 [..., W], one array for each plane."""
    units = (packing.nibbles(words) if bits == 3 else words).view(mx.uint8)
    return [plane.table[units].view(mx.uint8) for plane in planes(bits)]


@partial(mx.compile, shapeless=True)
def _multiplied(scales: mx.array, steps: mx.array) -> mx.array:
    """The scales and biases f32 [2 planes, B, H, T, groups] of the codes of vectors, whose scales
    are f16 [1, B, H, T, 1], in one kernel."""
    return scales.astype(mx.float32) * steps


@cache
def _steps(bits: int, groups: int) -> mx.array:
    """For each plane the scale and the bias of its codes where the scale of a vector is 1: f32
    [2 planes, 1, 1, 1, groups]."""
    steps = [(plane.step, -plane.step * plane.zero) for plane in planes(bits)]
    column = np.array(steps, dtype=np.float32).reshape(-1, 1, 1, 1, 1)
    return mx.array(np.repeat(column, groups, axis=-1))


def _padded(x: mx.array, width: int) -> mx.array:
    """The array with its last axis filled up with zeros."""
    missing = width - x.shape[-1]
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def _plane(bits: int, step: float, zero: float, codes: np.ndarray) -> Plane:
    # The first index of a byte is in its lowest bits. Those of 3 bits come in 4.
    shifts = np.arange(0, _CODE_BITS, 4 if bits == 3 else bits)
    index = np.arange(256)[:, None] >> shifts & (1 << bits) - 1
    joined = np.ascontiguousarray(codes.astype(np.uint8)[index]).view(_WORDS[len(shifts)])
    return Plane(step, zero, mx.array(joined[:, 0]))


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
