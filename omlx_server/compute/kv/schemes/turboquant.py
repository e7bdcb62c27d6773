"""TurboQuant (arXiv 2504.19874, the variant for the mean squared error): stores keys and values in
2, 3, 4 or 8 bits a number, and attends to them in that form.

A vector is rotated, which makes its coordinates look like N(0, rms^2). Each coordinate is stored as
the index of its nearest Lloyd-Max level, and with them one scale in f16:
    vector ~ inverse rotation of (scale * levels[index]),   scale = |vector| / |levels[index]|
The bytes of a vector depend on it alone, not on how many are stored at once.

Two additions save almost half of the quality that 4 bits cost a small model:
- The levels fit N(0, 1), which the few numbers of a vector never follow quite. What matters most is
  that the largest number has a level near it: so with 4 bits that number sets the levels' width.
- The mean of a head's keys (`centre`) is subtracted before they are stored, and never added again:
  it changes all scores of a query by one number, which softmax does not see.
"""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import mlx.core as mx

from omlx_server.compute.kv.schemes import codebook, packing, tiles, turboquant_tiles
from omlx_server.compute.kv.schemes.base import Arrays, Mask
from omlx_server.compute.kv.schemes.partial import Partial
from omlx_server.compute.kv.schemes.rotation import SEED, Rotation

VERSION = 2
"""The version of the stored bytes, to be raised when the same vector gives other bytes."""
BITS = (2, 3, 4, 8)
CHOICES = {2: (2, 2), 2.5: (2, 3), 3: (3, 3), 3.5: (3, 4), 4: (4, 4), 8: (8, 8)}
"""From the configured bits to the bits of keys and those of values."""

# A vector with one large coordinate becomes, after two rounds, numbers that depend on the seed's
# signs alone: at 64 dimensions with an unlucky seed, the error is twice that of N(0, 1). After
# three rounds it is within a few percent for any seed.
_ROUNDS = 3
# With 4 bits the levels are so wide that the largest number of a vector is at `_PEAK` among them,
# but at most `_WIDEST` times as wide as the rms, for the sake of the other numbers. The error of 64
# normal numbers is 15 % less than with levels as wide as the rms, that of 256 numbers 3 % less;
# other bits gain next to nothing.
_PEAK = 2.9
_WIDEST = 1.1
_LARGEST_SCALE = 65504.0
_LARGEST_NUMBER = 1e15
_SMALLEST_WIDTH = 1e-30


@dataclass(frozen=True, slots=True)
class TurboQuant:
    """The `Scheme`. It stores words u32 [B, H, T, words] and scales f16 [B, H, T, 1]."""

    key_bits: int
    value_bits: int
    seed: int = SEED
    shift: mx.array | None = field(default=None, compare=False)
    """What is subtracted from the heads of keys, then of values, before they are stored: the mean
    of one layer's keys, then zeros, f32 [2 H, 1, D]. Without it nothing is subtracted."""
    is_fused: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for bits in (self.key_bits, self.value_bits):
            if bits not in BITS:
                raise ValueError(f"TurboQuant stores 2, 3, 4 or 8 bits, not {bits}")

    @staticmethod
    def of_bits(bits: float, seed: int = SEED) -> "TurboQuant":
        """The scheme of one of `CHOICES`: 3.5 means keys of 3 bits and values of 4. Raises
        ValueError for other bits."""
        if bits not in CHOICES:
            known = ", ".join(f"{choice:g}" for choice in CHOICES)
            raise ValueError(f"TurboQuant takes {known} bits, not {bits:g}")
        return TurboQuant(*CHOICES[bits], seed)

    @property
    def centre(self) -> mx.array | None:
        """The mean of one layer's keys, f32 [H, 1, D], or None."""
        return None if self.shift is None else self.shift[: len(self.shift) // 2]

    @property
    def name(self) -> str:
        centred = "" if self.shift is None else "-centred"
        return f"turboquant-k{self.key_bits}v{self.value_bits}-s{self.seed}-v{VERSION}{centred}"

    def around(self, centre: mx.array) -> "TurboQuant":
        """The scheme for the layer whose keys have the mean `centre` f32 [H, 1, D]."""
        return replace(self, shift=mx.concatenate([centre, mx.zeros_like(centre)]))

    def check(self, head_dim: int) -> None:
        """Raise nothing: every head dim will do."""

    def quantize(self, keys: mx.array, values: mx.array) -> tuple[Arrays, Arrays]:
        """Keys and values of one shape are computed together, as the heads of one array."""
        if keys.shape != values.shape:
            return self.quantize_keys(keys), self.quantize_values(values)
        heads = keys.shape[1]
        rotated = self._rotated(mx.concatenate([keys, values], axis=1), self.shift)
        if self.key_bits == self.value_bits:
            stored = _stored(rotated, self.key_bits)
            return tuple(a[:, :heads] for a in stored), tuple(a[:, heads:] for a in stored)
        return (
            _stored(rotated[:, :heads], self.key_bits),
            _stored(rotated[:, heads:], self.value_bits),
        )

    def quantize_keys(self, keys: mx.array) -> Arrays:
        """The scale of a vector is about its rms. Scales over 65504 are stored as 65504, those too
        small for f16 as 0. The scale of a key that equals the centre is 0."""
        return _stored(self._rotated(keys, self.centre), self.key_bits)

    def quantize_values(self, values: mx.array) -> Arrays:
        return _stored(self._rotated(values, None), self.value_bits)

    def dequantize_keys(self, arrays: Arrays, dim: int, dtype: mx.Dtype) -> mx.array:
        """The keys [B, H, T, dim] in full precision, for tests and tools."""
        keys = self._dequantize(arrays, self.key_bits, dim)
        return (keys if self.centre is None else keys + self.centre).astype(dtype)

    def dequantize_values(self, arrays: Arrays, dim: int, dtype: mx.Dtype) -> mx.array:
        """The values [B, H, T, dim] in full precision, for tests and tools."""
        return self._dequantize(arrays, self.value_bits, dim).astype(dtype)

    def attend(
        self,
        queries: mx.array,
        keys: Arrays,
        values: Arrays,
        *,
        scale: float,
        mask: Mask,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """Computed in float32 between the rotations."""
        part = self.part(queries, keys, values, scale=scale, mask=mask, sinks=sinks)
        return self.finished(part, queries.dtype)

    def part(
        self,
        queries: mx.array,
        keys: Arrays,
        values: Arrays,
        *,
        scale: float,
        mask: Mask,
        sinks: mx.array | None = None,
    ) -> Partial:
        """The values have as many words as the head dim D of the queries needs, and D coordinates;
        otherwise they must fill their words. They are rotated; `finished` rotates them back."""
        dim = queries.shape[-1]
        value_words = values[0].shape[-1]
        same = value_words == packing.words(dim, self.value_bits)
        value_dim = dim if same else packing.capacity(value_words, self.value_bits)
        rotated = _scaled(queries, scale) @ self._rotation(dim).matrix
        bits = (self.key_bits, self.value_bits)
        stored = turboquant_tiles.tiles_for(rotated, keys, values, bits, value_dim)
        return tiles.partial(rotated, stored, scale=1.0, mask=mask, sinks=sinks)

    def finished(self, part: Partial, dtype: mx.Dtype) -> mx.array:
        mixed = part.finished()
        return (mixed @ self._rotation(mixed.shape[-1]).matrix.T).astype(dtype)

    def _rotated(self, x: mx.array, centre: mx.array | None) -> mx.array:
        """The vectors x [B, H, T, D] less `centre`, rotated, in f32."""
        rotation = self._rotation(x.shape[-1])
        first = _clipped(x, 0.0 if centre is None else centre, rotation.signs[0])
        return rotation.forward_from(first)

    def _dequantize(self, arrays: Arrays, bits: int, dim: int) -> mx.array:
        packed, scale = arrays
        levels = codebook.decode(packing.unpack(packed, bits), bits)[..., :dim]
        return self._rotation(dim).inverse(levels * scale.astype(mx.float32))

    def _rotation(self, dim: int) -> Rotation:
        return Rotation.of(dim, self.seed, _ROUNDS)


@partial(mx.compile, shapeless=True)
def _clipped(x: mx.array, centre: mx.array | float, signs: mx.array) -> mx.array:
    """The numbers x - centre times `signs` in f32, clipped so that squares stay finite, even those
    of infinities."""
    centred = x.astype(mx.float32) - centre
    return mx.clip(centred, -_LARGEST_NUMBER, _LARGEST_NUMBER) * signs


@partial(mx.compile, shapeless=True)
def _scaled(x: mx.array, factor: float) -> mx.array:
    """x times `factor` in f32."""
    return x.astype(mx.float32) * factor


def _stored(rotated: mx.array, bits: int) -> Arrays:
    """The words and scales of vectors [..., D], f32 and rotated. Numbers that go together are
    computed in one kernel where MLX can: the sums can't be part of one."""
    squares = rotated * rotated
    total = _total(squares)
    root = math.sqrt(rotated.shape[-1])
    if bits == 4:
        normal = _peaked(rotated, total, squares.max(axis=-1, keepdims=True), root)
    else:
        normal = _normal(rotated, total, root)
    index = codebook.encode(normal, bits)
    scale = _scale(total, _total(codebook.squares(bits)[index]))
    return packing.pack(index, bits), scale


@partial(mx.compile, shapeless=True)
def _normal(rotated: mx.array, total: mx.array, root: float) -> mx.array:
    """The numbers of rotated vectors [..., D] in units of their rms. Their squares are `total`
    [..., 1] together, and `root` is that of D."""
    return rotated / mx.maximum(mx.sqrt(total) / root, _SMALLEST_WIDTH)


@partial(mx.compile, shapeless=True)
def _peaked(rotated: mx.array, total: mx.array, largest: mx.array, root: float) -> mx.array:
    """As `_normal`, in units that put the number with the `largest` square [..., 1] at `_PEAK`."""
    widest = mx.sqrt(total) / root * _WIDEST
    width = mx.minimum(mx.sqrt(largest) / _PEAK, widest)
    return rotated / mx.maximum(width, _SMALLEST_WIDTH)


@partial(mx.compile, shapeless=True)
def _scale(total: mx.array, levels: mx.array) -> mx.array:
    """The scales f16 [..., 1] of vectors whose squares are `total` together, and those of their
    levels `levels`."""
    scale = mx.sqrt(total) / mx.sqrt(levels)
    return mx.minimum(scale, _LARGEST_SCALE).astype(mx.float16)


def _total(x: mx.array) -> mx.array:
    """The sums [..., 1] of x f32 [..., D], added up in the same order whatever the shape: `mx.sum`
    has several orders on a GPU. The first coordinate of a Hadamard transform is the sum."""
    *lead, dim = x.shape
    even = dim & -dim
    parts = x.reshape(*lead, dim // even, even)
    if even > 1:
        parts = mx.hadamard_transform(parts, scale=1.0)
    total: mx.array = parts[..., 0, :1]
    for i in range(1, dim // even):
        total = total + parts[..., i, :1]
    return total
