"""The scheme of latent attention (compute/kv/latent.py)."""

from typing import Unpack

import mlx.core as mx

from omlx_server.compute.kv.schemes import tiles
from omlx_server.compute.kv.schemes.base import Arrays, Scoring
from omlx_server.compute.kv.schemes.plain import Plain, PlainTiles, products

_Both = tuple[mx.array, mx.array]


class _LatentTiles(PlainTiles):
    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        latents, rotated = tiles.cut((*self.keys, *self.values), start, stop, rows)
        for_latents, for_rotated = _split(rows, latents)
        return products(for_latents, latents) + products(for_rotated, rotated)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        [latents] = tiles.cut(self.keys, start, stop, weights)
        return weights @ latents.astype(mx.float32)


class Latent(Plain):
    """The `Scheme` of latents [B, 1, T, Dc] as keys and rotated keys [B, 1, T, Dr] as values.

    Queries [B, Hq, L, Dc + Dr] have their rotated part last; answers are [B, Hq, L, Dc].
    """

    tiles_class = _LatentTiles

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        """`mask` is None or boolean."""
        [latents], [rotated] = keys, values
        mask = scoring["mask"]
        for_latents, for_rotated = _split(queries, latents)
        added = (for_rotated * scoring["scale"]) @ rotated.swapaxes(-1, -2)
        if isinstance(mask, mx.array):
            added = mx.where(mask, added, mx.array(mx.finfo(added.dtype).min, added.dtype))
        return mx.fast.scaled_dot_product_attention(
            for_latents,
            latents,
            latents,
            scale=scoring["scale"],
            mask=added,
            sinks=scoring.get("sinks"),
        )


def _split(queries: mx.array, latents: mx.array) -> _Both:
    width = latents.shape[-1]
    return queries[..., :width], queries[..., width:]
