"""The schemes that store keys and values, or latents (compute/kv/latent.py), as they are."""

from typing import ClassVar, Unpack

import mlx.core as mx

from omlx_server.compute.kv.schemes import tiles
from omlx_server.compute.kv.schemes.base import Arrays, Partial, Scheme, Scoring
from omlx_server.core.memory.kv import FEWEST_WIDENED, WIDENED_AT_ONCE


def inner_products(rows: mx.array, keys: mx.array) -> mx.array:
    """Return inner products f32 [B, H, R, T] of rows f32 [B, H, R, D] with keys [B, H, T, D]."""
    return rows @ keys.astype(mx.float32).swapaxes(-1, -2)


class PlainTiles(tiles.StoredTiles):
    """Keys and values [B, H, T, D]; half-precision numbers are widened tile by tile."""

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        [keys] = tiles.cut_tile(self.keys, start, stop, rows)
        return inner_products(rows, keys)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        [values] = tiles.cut_tile(self.values, start, stop, weights)
        return weights @ values.astype(mx.float32)


class Plain(Scheme):
    name = "kv"
    is_fused = True
    tiles_class: ClassVar[type[PlainTiles]] = PlainTiles

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
        # In float32, since MLX's fused kernel does not return a part's weight.
        batch, heads, size, dim = keys[0].shape
        if keys[0].dtype != mx.float32:
            size = max(WIDENED_AT_ONCE // (batch * heads * dim), FEWEST_WIDENED)
        stored, rows = self.tiles_class(keys, values, size), queries.astype(mx.float32)
        return tiles.attend_partly(rows, stored, **scoring)


class _LatentTiles(PlainTiles):
    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        latents, rotated = tiles.cut_tile((*self.keys, *self.values), start, stop, rows)
        for_latents, for_rotated = _split_queries(rows, latents)
        return inner_products(for_latents, latents) + inner_products(for_rotated, rotated)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        [latents] = tiles.cut_tile(self.keys, start, stop, weights)
        return weights @ latents.astype(mx.float32)


class Latent(Plain):
    """The `Scheme` of latents [B, 1, T, Dc] as keys and rotated keys [B, 1, T, Dr] as values.
    Queries [B, Hq, L, Dc + Dr] have their rotated part last; answers are [B, Hq, L, Dc]."""

    tiles_class = _LatentTiles

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        """`mask` is None or boolean."""
        [latents], [rotated] = keys, values
        mask = scoring["mask"]
        for_latents, for_rotated = _split_queries(queries, latents)
        rotated_scores = (for_rotated * scoring["scale"]) @ rotated.swapaxes(-1, -2)
        if isinstance(mask, mx.array):
            lowest = mx.array(mx.finfo(rotated_scores.dtype).min, rotated_scores.dtype)
            rotated_scores = mx.where(mask, rotated_scores, lowest)
        return mx.fast.scaled_dot_product_attention(
            for_latents,
            latents,
            latents,
            scale=scoring["scale"],
            mask=rotated_scores,
            sinks=scoring.get("sinks"),
        )


def _split_queries(queries: mx.array, latents: mx.array) -> tuple[mx.array, mx.array]:
    width = latents.shape[-1]
    return queries[..., :width], queries[..., width:]
