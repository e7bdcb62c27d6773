"""The scheme that stores keys and values as the model computes them."""

from dataclasses import dataclass
from typing import ClassVar, Unpack

import mlx.core as mx

from omlx_server.compute.kv.schemes import tiles
from omlx_server.compute.kv.schemes.base import Arrays, Scoring
from omlx_server.compute.kv.schemes.partial import Partial
from omlx_server.core.memory.shape import FEWEST_WIDENED, WIDENED_AT_ONCE


def products(rows: mx.array, keys: mx.array) -> mx.array:
    """Return inner products f32 [B, H, R, T] of rows f32 [B, H, R, D] with keys [B, H, T, D]."""
    return rows @ keys.astype(mx.float32).swapaxes(-1, -2)


@dataclass(frozen=True, slots=True, eq=False)
class PlainTiles(tiles.StoredArrays):
    """Keys and values [B, H, T, D]; half-precision numbers are widened tile by tile."""

    @property
    def size(self) -> int:
        [keys] = self.keys
        if keys.dtype == mx.float32:
            return self.total
        batch, heads, _, dim = keys.shape
        return max(WIDENED_AT_ONCE // (batch * heads * dim), FEWEST_WIDENED)

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        [keys] = tiles.cut(self.keys, start, stop, rows)
        return products(rows, keys)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        [values] = tiles.cut(self.values, start, stop, weights)
        return weights @ values.astype(mx.float32)


class Plain:
    name = "kv"
    is_fused = True
    tiles_class: ClassVar[type[PlainTiles]] = PlainTiles

    def check(self, head_dim: int) -> None:
        pass

    def quantize(self, keys: mx.array, values: mx.array) -> tuple[Arrays, Arrays]:
        return self.quantize_keys(keys), self.quantize_values(values)

    def quantize_keys(self, x: mx.array) -> Arrays:
        return (x,)

    quantize_values = quantize_keys

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        return mx.fast.scaled_dot_product_attention(queries, keys[0], values[0], **scoring)

    def part(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> Partial:
        """In float32: MLX's fused kernel does not return a part's weight."""
        stored, rows = self.tiles_class(keys, values), queries.astype(mx.float32)
        return tiles.partial(rows, stored, **scoring)

    def finished(self, part: Partial, dtype: mx.Dtype) -> mx.array:
        return part.finished().astype(dtype)
