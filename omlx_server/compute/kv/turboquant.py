"""TurboQuant (arXiv 2504.19874, the variant for the mean squared error): keys and values in 2, 3,
4 or 8 bits a number, and attention that reads them so.

A vector is rotated, which makes its coordinates look like N(0, rms^2). Each is stored as the index
of its nearest Lloyd-Max level, and with them one scale in f16:
    vector ~ inverse rotation of (scale * levels[index]),   scale = |vector| / |levels[index]|
The bytes of a vector depend on it alone, not on how many are stored at once.

Two additions, which together take almost half of what 4 bits cost a small model:
- The levels fit N(0, 1), which the few numbers of a vector never are quite: what matters most is
  that the largest of them has a level near it, so that one sets the width of the levels.
- Keys are stored less a vector that is fixed for a head, their mean (`centre`). All scores of a
  query change by one number, which softmax does not see, so that nobody adds it again.
"""

import math
from dataclasses import dataclass, field, replace

import mlx.core as mx

from omlx_server.compute.kv import codebook, packing, tiles, turboquant_tiles
from omlx_server.compute.kv.base import Arrays, Mask
from omlx_server.compute.kv.partial import Partial
from omlx_server.compute.kv.rotation import SEED, Rotation

VERSION = 2
"""The version of the stored bytes: to be raised when the same vector gives others."""
BITS = (2, 3, 4, 8)
CHOICES = {2: (2, 2), 2.5: (2, 3), 3: (3, 3), 3.5: (3, 4), 4: (4, 4), 8: (8, 8)}
"""Bits as configured: those of keys and of values."""

# Of one large coordinate two rounds make numbers that depend on the seed's signs alone: at 64
# dimensions up to twice the error of N(0, 1), by the seed. Three: within a few percent for any.
_ROUNDS = 3
# With 4 bits the largest number of a vector is put there among the levels, unless that makes them
# too wide for the others. Of 64 normal numbers 15 % less is lost than with levels as wide as their
# rms, of 256 numbers 3 %; other bits gain next to nothing.
_PEAK = 2.9
_WIDEST = 1.1
_LARGEST_SCALE = 65504.0
_LARGEST_NUMBER = 1e15
_SMALLEST_WIDTH = 1e-30


@dataclass(frozen=True, slots=True)
class TurboQuant:
    """A `Scheme`. Stored are u32 words [B, H, T, words] and scales f16 [B, H, T, 1]."""

    key_bits: int
    value_bits: int
    seed: int = SEED
    centre: mx.array | None = field(default=None, compare=False)
    """f32 [H, 1, D], of one layer's keys."""

    def __post_init__(self) -> None:
        for bits in (self.key_bits, self.value_bits):
            if bits not in BITS:
                raise ValueError(f"TurboQuant stores 2, 3, 4 or 8 bits, not {bits}")

    @staticmethod
    def of_bits(bits: float, seed: int = SEED) -> "TurboQuant":
        """One of `CHOICES`: 3.5 means keys of 3 bits and values of 4. ValueError for any other."""
        if bits not in CHOICES:
            known = ", ".join(f"{choice:g}" for choice in CHOICES)
            raise ValueError(f"TurboQuant takes {known} bits, not {bits:g}")
        return TurboQuant(*CHOICES[bits], seed)

    @property
    def name(self) -> str:
        centred = "" if self.centre is None else "-centred"
        return f"turboquant-k{self.key_bits}v{self.value_bits}-s{self.seed}-v{VERSION}{centred}"

    def around(self, centre: mx.array) -> "TurboQuant":
        """The scheme for the layer whose keys have the mean `centre` f32 [H, 1, D]."""
        return replace(self, centre=centre)

    def check(self, head_dim: int) -> None:
        """Every head dim will do."""

    def quantize_keys(self, keys: mx.array) -> Arrays:
        """The scale is about a vector's rms: one over 65504 is stored as that, and one that f16 has
        no number for as 0. What equals the centre is stored as zeros."""
        keys = keys.astype(mx.float32)
        return self._quantize(keys if self.centre is None else keys - self.centre, self.key_bits)

    def quantize_values(self, values: mx.array) -> Arrays:
        return self._quantize(values.astype(mx.float32), self.value_bits)

    def dequantize_keys(self, arrays: Arrays, dim: int, dtype: mx.Dtype) -> mx.array:
        """The keys [B, H, T, dim] in full: for tests and tools."""
        keys = self._dequantize(arrays, self.key_bits, dim)
        return (keys if self.centre is None else keys + self.centre).astype(dtype)

    def dequantize_values(self, arrays: Arrays, dim: int, dtype: mx.Dtype) -> mx.array:
        """The values, as `dequantize_keys`."""
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
        rotated = self._rotation(dim).forward(queries.astype(mx.float32))
        bits = (self.key_bits, self.value_bits)
        stored = turboquant_tiles.tiles_for(rotated, keys, values, bits, value_dim)
        return tiles.partial(rotated, stored, scale=scale, mask=mask, sinks=sinks)

    def finished(self, part: Partial, dtype: mx.Dtype) -> mx.array:
        mixed = part.finished()
        return self._rotation(mixed.shape[-1]).inverse(mixed).astype(dtype)

    def _quantize(self, x: mx.array, bits: int) -> Arrays:
        # Squares stay finite, also of infinities.
        clipped = mx.clip(x, -_LARGEST_NUMBER, _LARGEST_NUMBER)
        rotated = self._rotation(x.shape[-1]).forward(clipped)
        length = mx.sqrt(_total(rotated * rotated))
        normal = rotated / mx.maximum(_width(rotated, length, bits), _SMALLEST_WIDTH)
        index = codebook.encode(normal, bits)
        levels = codebook.decode(index, bits)
        scale = length / mx.sqrt(_total(levels * levels))
        return packing.pack(index, bits), mx.minimum(scale, _LARGEST_SCALE).astype(mx.float16)

    def _dequantize(self, arrays: Arrays, bits: int, dim: int) -> mx.array:
        packed, scale = arrays
        levels = codebook.decode(packing.unpack(packed, bits), bits)[..., :dim]
        return self._rotation(dim).inverse(levels * scale.astype(mx.float32))

    def _rotation(self, dim: int) -> Rotation:
        return Rotation.of(dim, self.seed, _ROUNDS)


def _width(rotated: mx.array, length: mx.array, bits: int) -> mx.array:
    """What one unit of the levels is worth in f32 [..., D] of that length: f32 [..., 1]."""
    rms = length / math.sqrt(rotated.shape[-1])
    if bits != 4:
        return rms
    return mx.minimum(mx.abs(rotated).max(axis=-1, keepdims=True) / _PEAK, rms * _WIDEST)


def _total(x: mx.array) -> mx.array:
    """f32 [..., D] summed as [..., 1], in one order whatever the shape: `mx.sum` has several on a
    GPU. The first coordinate of a Hadamard transform is the sum."""
    *lead, dim = x.shape
    even = dim & -dim
    parts = x.reshape(*lead, dim // even, even)
    if even > 1:
        parts = mx.hadamard_transform(parts, scale=1.0)
    total: mx.array = parts[..., 0, :1]
    for i in range(1, dim // even):
        total = total + parts[..., i, :1]
    return total
