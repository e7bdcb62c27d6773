"""A seeded orthogonal rotation of the last axis, which makes numbers nearly normal. One round is
random signs, then a matrix that is its own inverse:
    dim 2^k or 12 * 2^k     `mx.hadamard_transform`
    dim m * 2^k, m odd      an m x m Hartley matrix times a Hadamard of 2^k
MLX's Hadamard gives wrong values or corrupts the heap on the CPU for any other dim.

The bits of a rotated vector depend on it alone: the Hartley part is a sum in a fixed order, since a
matmul rounds differently for other shapes.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cache

import mlx.core as mx
import numpy as np

SEED = 0  # of all signs, part of the namespace of blocks


@dataclass(frozen=True, slots=True, eq=False)
class VectorRotation:
    """A rotation of vectors of `dim` numbers, equal on every machine."""

    dim: int
    signs: tuple[mx.array, ...]  # f32 [dim] of each round
    hartley: mx.array | None  # f32 [m, m], or None where the Hadamard transform does it all
    # f32 [dim, dim]: x @ matrix is `forward(x)` in one kernel, but rounds by the number of vectors.
    matrix: mx.array

    @staticmethod
    @cache
    def of(dim: int, seed: int, rounds: int) -> "VectorRotation":
        if dim < 1 or rounds < 1:
            raise ValueError(f"no rotation of {dim} dimensions in {rounds} rounds")
        signs = tuple(mx.array(_signs(dim, seed, round_number)) for round_number in range(rounds))
        odd = dim // (dim & -dim)
        # MLX's transform is right for 12 * 2^k too, and its matrix spreads numbers most evenly.
        is_hadamard = odd == 1 or (odd == 3 and dim % 4 == 0)
        rotation = VectorRotation(
            dim, signs, None if is_hadamard else mx.array(_hartley(odd)), mx.eye(dim)
        )
        matrix = rotation.forward(rotation.matrix)
        mx.eval(matrix)
        return replace(rotation, matrix=matrix)

    def forward(self, x: mx.array) -> mx.array:
        """Rotate x [..., dim] in float32; returns x's dtype."""
        return self.forward_from(x.astype(mx.float32) * self.signs[0]).astype(x.dtype)

    def forward_from(self, x: mx.array) -> mx.array:
        """Rotate x f32 [..., dim], already multiplied by the first signs."""
        rotated = self._mix(x)
        for signs in self.signs[1:]:
            rotated = self._mix(rotated * signs)
        return rotated

    def inverse(self, x: mx.array) -> mx.array:
        restored = x.astype(mx.float32)
        for signs in reversed(self.signs):
            restored = self._mix(restored) * signs
        return restored.astype(x.dtype)

    def _mix(self, x: mx.array) -> mx.array:
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


def _signs(dim: int, seed: int, round_number: int) -> np.ndarray:
    """From a hash, because numpy's generators may change."""
    stream = hashlib.shake_256(f"{seed}/{dim}/{round_number}".encode()).digest(-(-dim // 8))
    bits = np.unpackbits(np.frombuffer(stream, dtype=np.uint8))[:dim]
    return bits.astype(np.float32) * 2 - 1


def _hartley(order: int) -> np.ndarray:
    """Return (cos + sin of 2 pi i j / order) / sqrt(order), f32: orthogonal and symmetric."""
    turns = np.outer(np.arange(order), np.arange(order)) % order * (2 * math.pi / order)
    matrix: np.ndarray = (np.cos(turns) + np.sin(turns)) / math.sqrt(order)
    return matrix.astype(np.float32)
