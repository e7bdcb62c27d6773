"""TurboQuant (arXiv 2504.19874, for the mean squared error): keys and values in 2, 3, 4 or 8 bits a
number, and attention on that form.

A vector is rotated, so that its coordinates look like N(0, rms^2). Each becomes the index of its
nearest Lloyd-Max level, with one f16 scale for all:

    vector ~ inverse rotation of (scale * levels[index]),   scale = |vector| / |levels[index]|

With 4 bits the largest number of a vector sets the width of the levels. The mean of a head's keys
(`centre`) is subtracted: it changes all scores of a query by one number, which softmax does not
see.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Unpack

import mlx.core as mx
import numpy as np

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes import codebook, packing, tiles, turboquant_tiles
from omlx_server.compute.kv.schemes.base import Arrays, Partial, Scheme, Scoring
from omlx_server.compute.kv.schemes.rotation import SEED, VectorRotation

VERSION = 2  # raised when the same vector gives other stored bytes
BITS = (2, 3, 4, 8)
# Configured bits to the bits of keys and of values.
CHOICES = {2: (2, 2), 2.5: (2, 3), 3: (3, 3), 3.5: (3, 4), 4: (4, 4), 8: (8, 8)}

# After two rounds an unlucky seed doubles the error of a vector with one large coordinate; after
# three it is within a few percent for any seed.
_ROUNDS = 3
# With 4 bits the largest number of a vector is at `_PEAK` among the levels, which are at most
# `_WIDEST` times as wide as the rms. The error of 64 normal numbers falls by 15 %, that of 256
# numbers by 3 %; other bits gain nothing.
_PEAK = 2.9
_WIDEST = 1.1
# So small that the peak never sets the width.
_NO_PEAK = 1e-3
_LARGEST_SCALE = 65504.0
_LARGEST_NUMBER = 1e15
_SMALLEST_WIDTH = 1e-30
_HALVES = mx.array(np.array([False, True]).reshape(2, 1, 1, 1, 1))


@dataclass(frozen=True, slots=True)
class TurboQuant(Scheme):
    """The `Scheme`. It stores words u32 [B, H, T, words] and scales f16 [B, H, T, 1]."""

    key_bits: int
    value_bits: int
    seed: int = SEED
    # Subtracted before storing, f32 [2, 1, H, 1, D]: the mean of a layer's keys, zeros for values.
    shift: mx.array | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for bits in (self.key_bits, self.value_bits):
            if bits not in BITS:
                raise ValueError(f"TurboQuant stores 2, 3, 4 or 8 bits, not {bits}")

    @staticmethod
    def of_bits(bits: float, seed: int = SEED) -> "TurboQuant":
        """Return the scheme of `CHOICES`. Raises ValueError for other bits."""
        if bits not in CHOICES:
            choices = ", ".join(f"{choice:g}" for choice in CHOICES)
            raise ValueError(f"TurboQuant takes {choices} bits, not {bits:g}")
        return TurboQuant(*CHOICES[bits], seed)

    @property
    def centre(self) -> mx.array | None:
        return None if self.shift is None else self.shift[0, 0]

    @property
    def name(self) -> str:
        centred = "" if self.shift is None else "-centred"
        return f"turboquant-k{self.key_bits}v{self.value_bits}-s{self.seed}-v{VERSION}{centred}"

    def centred_on(self, centre: mx.array) -> "TurboQuant":
        """Return the scheme for a layer whose keys have the mean f32 [H, 1, D]."""
        return replace(self, shift=mx.stack([centre, mx.zeros_like(centre)])[:, None])

    def quantize(self, keys: mx.array, values: mx.array) -> tuple[Arrays, Arrays]:
        if keys.shape != values.shape:
            return self.quantize_keys(keys), self.quantize_values(values)
        rotation = self._rotation(keys.shape[-1])
        shift = 0.0 if self.shift is None else self.shift
        signed = _stack_and_clip(keys[None], values[None], _HALVES, shift, rotation.signs[0])
        rotated = rotation.forward_from(signed)
        stored_keys, stored_values = _pack_halves(rotated, (self.key_bits, self.value_bits))
        return stored_keys, stored_values

    def quantize_keys(self, keys: mx.array) -> Arrays:
        """Scales over 65504 are stored as 65504, those too small for f16 as 0."""
        return _pack(self._rotate(keys, self.centre), self.key_bits)

    def quantize_values(self, values: mx.array) -> Arrays:
        return _pack(self._rotate(values, None), self.value_bits)

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        rotated, stored = self._rotate_queries_and_read(queries, keys, values, scoring["scale"])
        mixed = tiles.attend_in_float32(rotated, stored, **(scoring | {"scale": 1.0}))
        return self._rotate_back(mixed, queries.dtype)

    def part(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> Partial:
        rotated, stored = self._rotate_queries_and_read(queries, keys, values, scoring["scale"])
        return tiles.attend_partly(rotated, stored, **(scoring | {"scale": 1.0}))

    def answer(self, merged: Partial, dtype: mx.Dtype) -> mx.array:
        return self._rotate_back(merged.answer(), dtype)

    def _rotate_queries_and_read(
        self, queries: mx.array, keys: Arrays, values: Arrays, scale: float
    ) -> tuple[mx.array, tiles.StoredTiles]:
        dim = queries.shape[-1]
        value_words = values[0].shape[-1]
        is_key_dim = value_words == packing.words(dim, self.value_bits)
        value_dim = dim if is_key_dim else packing.capacity(value_words, self.value_bits)
        rotated = _scale_in_float32(queries, scale) @ self._rotation(dim).matrix
        bits = (self.key_bits, self.value_bits)
        return rotated, turboquant_tiles.tiles_for(rotated, keys, values, bits, value_dim)

    def _rotate_back(self, mixed: mx.array, dtype: mx.Dtype) -> mx.array:
        return (mixed @ self._rotation(mixed.shape[-1]).matrix.T).astype(dtype)

    def _rotate(self, x: mx.array, centre: mx.array | None) -> mx.array:
        rotation = self._rotation(x.shape[-1])
        signed = _clip_and_sign(x, 0.0 if centre is None else centre, rotation.signs[0])
        return rotation.forward_from(signed)

    def _rotation(self, dim: int) -> VectorRotation:
        return VectorRotation.of(dim, self.seed, _ROUNDS)


@partial(mx.compile, shapeless=True)
def _clip_and_sign(x: mx.array, centre: mx.array | float, signs: mx.array) -> mx.array:
    centred = x.astype(mx.float32) - centre
    return mx.clip(centred, -_LARGEST_NUMBER, _LARGEST_NUMBER) * signs


@partial(mx.compile, shapeless=True)
def _stack_and_clip(
    keys: mx.array, values: mx.array, are_values: mx.array, shift: mx.array | float, signs: mx.array
) -> mx.array:
    """Return keys and values [1, B, H, T, D] as [2, B, H, T, D], in one kernel."""
    clipped: mx.array = _clip_and_sign(mx.where(are_values, values, keys), shift, signs)
    return clipped


@partial(mx.compile, shapeless=True)
def _scale_in_float32(x: mx.array, factor: float) -> mx.array:
    return x.astype(mx.float32) * factor


def _pack(rotated: mx.array, bits: int) -> Arrays:
    index, scale = _nearest_levels(rotated, (bits,))
    return packing.pack(index, bits), scale


def _pack_halves(rotated: mx.array, bits: tuple[int, int]) -> list[Arrays]:
    """Return words and scales of each half of [2, B, H, T, D]."""
    key_bits, value_bits = bits
    if key_bits == value_bits:
        index, scales = _nearest_levels(rotated, (key_bits,))
        words = list(packing.pack(index, key_bits))
    elif device.is_cpu() or max(bits) > 4:
        return [_pack(half, width) for half, width in zip(rotated, bits, strict=True)]
    else:  # a GPU finds the levels of both in one kernel
        index, scales = _nearest_levels(rotated, bits)
        words = [packing.pack(half, width) for half, width in zip(index, bits, strict=True)]
    return list(zip(words, scales, strict=True))


def _nearest_levels(rotated: mx.array, bits: tuple[int, ...]) -> tuple[mx.array, mx.array]:
    """Return indices u8 and scales of [..., D], or of [N, B, H, T, D] with bits[i] for part i."""
    squares = rotated * rotated
    length_squared = _sum_in_order(squares)
    root = math.sqrt(rotated.shape[-1])
    if 4 in bits:
        largest = squares.max(axis=-1, keepdims=True)
        bounds = _peak_bounds(bits)
        normal = _divide_by_rms_or_peak(rotated, length_squared, largest, root, *bounds)
    else:
        normal = _divide_by_rms(rotated, length_squared, root)
    if len(bits) > 1:
        index = codebook.encode_each(normal, bits)
        level_squares = codebook.squares_each(index, bits)
    else:
        index = codebook.encode(normal, bits[0])
        level_squares = codebook.squares(bits[0])[index]
    return index, _scales_to_keep_length(length_squared, _sum_in_order(level_squares))


@cache
def _peak_bounds(bits: tuple[int, ...]) -> tuple[mx.array, mx.array] | tuple[float, float]:
    if bits == (4,):
        return _PEAK, _WIDEST
    pairs = [(_PEAK, _WIDEST) if width == 4 else (_NO_PEAK, 1.0) for width in bits]
    peaks, widest = np.array(pairs, dtype=np.float32).T.reshape(2, -1, 1, 1, 1, 1)
    return mx.array(peaks), mx.array(widest)


@partial(mx.compile, shapeless=True)
def _divide_by_rms(rotated: mx.array, length_squared: mx.array, root: float) -> mx.array:
    return rotated / mx.maximum(mx.sqrt(length_squared) / root, _SMALLEST_WIDTH)


@partial(mx.compile, shapeless=True)
def _divide_by_rms_or_peak(
    rotated: mx.array,
    length_squared: mx.array,
    largest: mx.array,
    root: float,
    peak: mx.array | float,
    widest: mx.array | float,
) -> mx.array:
    width = mx.minimum(mx.sqrt(largest) / peak, mx.sqrt(length_squared) / root * widest)
    return rotated / mx.maximum(width, _SMALLEST_WIDTH)


@partial(mx.compile, shapeless=True)
def _scales_to_keep_length(length_squared: mx.array, levels_squared: mx.array) -> mx.array:
    scale = mx.sqrt(length_squared) / mx.sqrt(levels_squared)
    return mx.minimum(scale, _LARGEST_SCALE).astype(mx.float16)


def _sum_in_order(x: mx.array) -> mx.array:
    """Sum [..., 1] in one order whatever the shape, unlike `mx.sum` on a GPU."""
    *lead, dim = x.shape
    even = dim & -dim
    parts = x.reshape(*lead, dim // even, even)
    if even > 1:
        parts = mx.hadamard_transform(parts, scale=1.0)
    total: mx.array = _add_all(*(parts[..., i, :1] for i in range(dim // even)))
    return total


@partial(mx.compile, shapeless=True)
def _add_all(first: mx.array, *others: mx.array) -> mx.array:
    for other in others:
        first = first + other
    return first
