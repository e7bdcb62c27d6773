"""Affine quantisation of rotated keys and values. A rotation spreads the few large channels of keys
over all coordinates, which then fit one scale."""

from dataclasses import dataclass, field, replace
from typing import Unpack

import mlx.core as mx

from omlx_server.compute.kv.schemes.affine import Affine
from omlx_server.compute.kv.schemes.base import Arrays, Partial, Scheme, Scoring
from omlx_server.compute.kv.schemes.rotation import SEED, VectorRotation

_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Rotated(Scheme):
    """The `Scheme`: `affine` stores the rotated numbers; `seed` draws the rotation."""

    affine: Affine
    seed: int = SEED
    centre: mx.array | None = field(default=None, compare=False)
    """The mean of one layer's keys, f32 [H, 1, D], which is subtracted from keys."""

    @classmethod
    def of(cls, bits: int, group_size: int = 64) -> "Rotated":
        return cls(Affine(bits, group_size))

    @property
    def name(self) -> str:
        centred = "" if self.centre is None else "-centred"
        return f"rotated-r{_ROUNDS}-s{self.seed}-{self.affine.name}{centred}"

    def centred_on(self, centre: mx.array) -> "Rotated":
        return replace(self, centre=centre)

    def check(self, head_dim: int) -> None:
        self.affine.check(head_dim)

    def quantize_keys(self, x: mx.array) -> Arrays:
        keys = x if self.centre is None else (x.astype(mx.float32) - self.centre).astype(x.dtype)
        return self.affine.quantize_keys(self._rotation(x).forward(keys))

    def quantize_values(self, x: mx.array) -> Arrays:
        return self.affine.quantize_values(self._rotation(x).forward(x))

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        rotated = self._rotation(queries).forward(queries)
        mixed = self.affine.attend(rotated, keys, values, **scoring)
        return self._rotation(mixed).inverse(mixed)

    def part(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> Partial:
        rotated = self._rotation(queries).forward(queries)
        return self.affine.part(rotated, keys, values, **scoring)

    def answer(self, merged: Partial, dtype: mx.Dtype) -> mx.array:
        mixed = self.affine.answer(merged, dtype)
        return self._rotation(mixed).inverse(mixed)

    def _rotation(self, x: mx.array) -> VectorRotation:
        return VectorRotation.of(x.shape[-1], self.seed, _ROUNDS)
