"""A seeded orthogonal rotation of the last axis, which spreads each value over all coordinates.

A rotation keeps inner products, so q.k == Rq.Rk. It turns vectors with a few large channels into
numbers that are distributed nearly normally, which a quantiser of few levels fits.

One round is random signs, then a fixed orthogonal matrix that is its own inverse:
    dim 2^k or 12 * 2^k     `mx.hadamard_transform`
    dim m * 2^k, m odd      an m x m Hartley matrix times a Hadamard of 2^k
MLX's Hadamard gives wrong values or corrupts the heap on the CPU for any other dim.

The bits of a rotated vector depend on that vector alone, never on how many are rotated at once:
the Hartley part is a sum in a fixed order, since a matmul rounds differently for other shapes.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cache

import mlx.core as mx
import numpy as np

SEED = 0
"""Draws the signs of every rotation. It is part of the namespace of blocks: with another seed, the
blocks that are stored are not found any more."""


@dataclass(frozen=True, slots=True, eq=False)
class VectorRotation:
    """A rotation of vectors of `dim` numbers. It is the same on every machine for the same (dim,
    seed, rounds). It holds no lazy array, so it may be used from any thread."""

    dim: int
    signs: tuple[mx.array, ...]
    """The signs of each round: +-1 as f32 [dim]."""
    hartley: mx.array | None
    """The Hartley matrix f32 [m, m], or None where the Hadamard transform does it all."""
    matrix: mx.array
    """The whole rotation f32 [dim, dim]: x @ matrix is `forward(x)` but for rounding, and takes one
    kernel. How it rounds depends on the number of vectors, so nothing is stored by it."""

    @staticmethod
    @cache
    def of(dim: int, seed: int, rounds: int) -> "VectorRotation":
        """The rotation, made once and kept. Raises ValueError unless dim and rounds are at least
        1."""
        if dim < 1 or rounds < 1:
            raise ValueError(f"no rotation of {dim} dimensions in {rounds} rounds")
        signs = tuple(mx.array(_signs(dim, seed, turn)) for turn in range(rounds))
        odd = dim // _power_of_two(dim)
        # MLX's transform is right for 12 * 2^k too, and its matrix spreads numbers most evenly.
        whole = odd == 1 or (odd == 3 and dim % 4 == 0)
        rotation = VectorRotation(
            dim, signs, None if whole else mx.array(_hartley(odd)), mx.eye(dim)
        )
        matrix = rotation.forward(rotation.matrix)
        mx.eval(matrix)
        return replace(rotation, matrix=matrix)

    def forward(self, x: mx.array) -> mx.array:
        """Rotate x [..., dim]. Computed in float32, returned in x's dtype."""
        return self.forward_from(x.astype(mx.float32) * self.signs[0]).astype(x.dtype)

    def forward_from(self, x: mx.array) -> mx.array:
        """What `forward` does with x f32 [..., dim] once it is multiplied by the first signs."""
        rotated = self._mix(x)
        for signs in self.signs[1:]:
            rotated = self._mix(rotated * signs)
        return rotated

    def inverse(self, x: mx.array) -> mx.array:
        """Undo `forward`: x [..., dim], computed in float32, returned in x's dtype."""
        restored = x.astype(mx.float32)
        for signs in reversed(self.signs):
            restored = self._mix(restored) * signs
        return restored.astype(x.dtype)

    def _mix(self, x: mx.array) -> mx.array:
        """Multiply x f32 [..., dim] by the fixed matrix, which is its own inverse."""
        if self.hartley is None:
            return mx.hadamard_transform(x, scale=self.dim**-0.5)
        odd = self.hartley.shape[0]
        even = self.dim // odd
        parts = x.reshape(*x.shape[:-1], odd, even)
        mixed = parts[..., :1, :] * self.hartley[:, :1]
        for i in range(1, odd):
            mixed = mixed + parts[..., i : i + 1, :] * self.hartley[:, i : i + 1]
        if even > 1:
            mixed = mx.hadamard_transform(mixed, scale=even**-0.5)
        return mixed.reshape(x.shape)


def _power_of_two(number: int) -> int:
    """The largest power of two that divides a number."""
    return number & -number


def _signs(dim: int, seed: int, turn: int) -> np.ndarray:
    """Signs +-1 as f32 [dim]. They come from a hash, because numpy's generators may change from
    version to version."""
    stream = hashlib.shake_256(f"{seed}/{dim}/{turn}".encode()).digest(-(-dim // 8))
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8))[:dim]
    return bits.astype(np.float32) * 2 - 1


def _hartley(order: int) -> np.ndarray:
    """The Hartley matrix f32 [order, order]: cos + sin of 2 pi i j / order, over sqrt(order). It is
    orthogonal and symmetric, and no entry is larger than sqrt(2 / order)."""
    turns = np.outer(np.arange(order), np.arange(order)) % order * (2 * math.pi / order)
    matrix: np.ndarray = (np.cos(turns) + np.sin(turns)) / math.sqrt(order)
    return matrix.astype(np.float32)
