"""MLX's own quantisation: each group of coordinates has codes, a scale and a bias."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import mlx.core as mx

from omlx_server.compute.kv.schemes import affine_tiles, tiles
from omlx_server.compute.kv.schemes.base import Arrays, Scheme, Scoring
from omlx_server.compute.kv.schemes.partial import Partial

BITS = (2, 3, 4, 6, 8)
GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Affine(Scheme):
    """The `Scheme` of `bits` a coordinate. Raises ValueError for numbers unknown to MLX."""

    bits: int
    group_size: int = 64

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(f"MLX quantises to {_listed(BITS)} bits, not to {self.bits}")
        if self.group_size not in GROUP_SIZES:
            raise ValueError(
                f"MLX quantises in groups of {_listed(GROUP_SIZES)}, not of {self.group_size}"
            )

    @property
    def name(self) -> str:
        return f"affine-{self.bits}b-g{self.group_size}"

    def check(self, head_dim: int) -> None:
        if head_dim % self.group_size:
            fitting = [size for size in GROUP_SIZES if head_dim % size == 0]
            way_out = f"{_listed(fitting)} would" if fitting else "no size that MLX knows does"
            raise ValueError(
                f"a group size of {self.group_size} does not divide its head dim of {head_dim}; "
                + way_out
            )

    def quantize_keys(self, x: mx.array) -> Arrays:
        return tuple(mx.quantize(x, group_size=self.group_size, bits=self.bits))

    quantize_values = quantize_keys

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        stored = affine_tiles.tiles_for(queries, keys, values, self.bits, self.group_size)
        return tiles.attend(queries, stored, **scoring)

    def part(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> Partial:
        stored = affine_tiles.tiles_for(queries, keys, values, self.bits, self.group_size)
        return tiles.attend_partly(queries, stored, **scoring)


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
