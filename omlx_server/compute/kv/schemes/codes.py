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
_STEPS_TRIED = 4001
# What the high and the low byte of a number are worth.
_WORTH_OF_BYTES = mx.array(np.array([256, 1], dtype=np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Coding:
    """The codes of each index, of 8 bits two: step * (256 * (high - zero) + low - zero)."""

    step: float
    zero: float
    table: mx.array  # [256]: codes of a byte's indices as one integer, the first or high one lowest
    codes_per_index: int


@cache
def coding(bits: int) -> Coding:
    step, zero, codes = _best_grid(bits)
    if bits <= 4:
        return Coding(step, zero, _table(bits, codes[:, None]), 1)
    both = np.stack([codes >> _CODE_BITS, codes & 0xFF], axis=-1)
    return Coding(step, 0xFF / 2, _table(bits, both), 2)


def products(rows: mx.array, stored: Arrays, bits: int, *, transpose: bool) -> mx.array:
    """Multiply rows f32 [B, H, R, N] with stored (words u32 [B, H, T, W], scales f16 [B, H, T, 1]).
    With `transpose` return inner products [B, H, R, T], otherwise sums [B, H, R, D] for N = T."""
    words, scales = stored
    codes_per_index = coding(bits).codes_per_index
    count = packing.capacity(words.shape[-1], bits) * codes_per_index
    # Quantised products take whole groups.
    padded_count = -(-count // _GROUP_SIZES[-1]) * _GROUP_SIZES[-1]
    group = next(size for size in _GROUP_SIZES if padded_count % size == 0)
    if transpose:
        if codes_per_index == 2:
            rows = (rows[..., None] * _WORTH_OF_BYTES).flatten(-2)
        rows = _pad_width(rows, padded_count)
    # Two views: an index would be a kernel.
    scale, bias = _multiply_scales(scales[None], _steps(bits, padded_count // group))
    product = mx.quantized_matmul(
        rows,
        _pad_width(_codes_of(words, bits), padded_count).view(mx.uint32),
        scale,
        bias,
        transpose=transpose,
        group_size=group,
        bits=_CODE_BITS,
    )
    if transpose or codes_per_index == 1:
        return product
    summed: mx.array = _join_bytes(product[..., ::2], product[..., 1::2])
    return summed


def _codes_of(words: mx.array, bits: int) -> mx.array:
    units = (packing.nibbles(words) if bits == 3 else words).view(mx.uint8)
    return coding(bits).table[units].view(mx.uint8)


@partial(mx.compile, shapeless=True)
def _multiply_scales(scales: mx.array, steps: mx.array) -> mx.array:
    """Return f32 [2, B, H, T, groups] for scales f16 [1, B, H, T, 1]."""
    return scales.astype(mx.float32) * steps


@cache
def _steps(bits: int, groups: int) -> mx.array:
    """Return scale and bias f32 [2, 1, 1, 1, groups] for a vector of scale 1."""
    step, zero = coding(bits).step, coding(bits).zero
    column = np.array([step, -step * zero], dtype=np.float32).reshape(-1, 1, 1, 1, 1)
    return mx.array(np.repeat(column, groups, axis=-1))


@partial(mx.compile, shapeless=True)
def _join_bytes(high: mx.array, low: mx.array) -> mx.array:
    return high * 256 + low


def _pad_width(x: mx.array, width: int) -> mx.array:
    missing = width - x.shape[-1]
    return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)]) if missing else x


def _table(bits: int, codes: np.ndarray) -> mx.array:
    # The first index of a byte is in its lowest bits. Those of 3 bits come in 4.
    shifts = np.arange(0, _CODE_BITS, 4 if bits == 3 else bits)
    index = np.arange(256)[:, None] >> shifts & (1 << bits) - 1
    code_bytes = np.ascontiguousarray(codes.astype(np.uint8)[index]).reshape(256, -1)
    return mx.array(code_bytes.view(_WORDS[code_bytes.shape[1]])[:, 0])


def _best_grid(bits: int) -> tuple[float, float, np.ndarray]:
    """Return the step and zero that miss the levels least, and each level's code."""
    zeros = (128.0, 127.5) if bits <= 4 else (32767.5,)
    _, step, zero, above = min((_fit_grid(bits, zero) for zero in zeros), key=itemgetter(0))
    return step, zero, np.concatenate([2 * zero - above[::-1], above]).astype(np.int64)


def _fit_grid(bits: int, zero: float) -> tuple[float, float, float, np.ndarray]:
    """Return the best grid with this zero: its error, step, zero, and codes of positive levels."""
    half = 1 << bits >> 1
    positive, mass = codebook.levels(bits)[half:], codebook.masses(bits)[half:]
    reach = math.ceil(zero) - 1 + zero % 1  # codes from zero - reach to zero + reach
    tried = positive[-1] / np.linspace(reach / 2, reach, _STEPS_TRIED)[:, None]
    code = np.clip(np.round(positive / tried + zero), np.floor(zero) + 1, zero + reach) - zero
    # With the codes given, the best step is one of least squares.
    steps = (mass * code * positive).sum(axis=1) / (mass * code * code).sum(axis=1)
    errors = (mass * (code * steps[:, None] - positive) ** 2).sum(axis=1)
    best = int(errors.argmin())
    return float(errors[best]), float(steps[best]), zero, code[best] + zero
