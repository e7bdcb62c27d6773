"""The scheme of latent attention, for decodes on latents (compute/kv/latent.py)."""

from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.kv.schemes import tiles
from omlx_server.compute.kv.schemes.base import Arrays, Mask
from omlx_server.compute.kv.schemes.partial import Partial
from omlx_server.compute.kv.schemes.plain import Plain, tile_size

_Both = tuple[mx.array, mx.array]


class Latent(Plain):
    """The `Scheme` that stores latents [B, 1, T, Dc] as keys and rotated keys [B, 1, T, Dr] as
    values. Queries [B, Hq, L, Dc + Dr] are those for latents, then the rotated ones; their answers
    [B, Hq, L, Dc] are sums of latents."""

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
        """As mlx-lm's models do it. `mask` is None or boolean."""
        [latents], [rotated] = keys, values
        for_latents, for_rotated = _split(queries, latents)
        added = (for_rotated * scale) @ rotated.swapaxes(-1, -2)
        if isinstance(mask, mx.array):
            added = mx.where(mask, added, mx.array(mx.finfo(added.dtype).min, added.dtype))
        return mx.fast.scaled_dot_product_attention(
            for_latents, latents, latents, scale=scale, mask=added, sinks=sinks
        )

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
        """In float32, as `Plain` does it."""
        stored = _LatentTiles(keys[0], values[0])
        rows = queries.astype(mx.float32)
        return tiles.partial(rows, stored, scale=scale, mask=mask, sinks=sinks)


def _split(queries: mx.array, latents: mx.array) -> _Both:
    width = latents.shape[-1]
    return queries[..., :width], queries[..., width:]


@dataclass(frozen=True, slots=True, eq=False)
class _LatentTiles:
    """Latents and rotated keys [B, 1, T, D] for `tiles.partial`."""

    latents: mx.array
    rotated: mx.array

    heads = 1

    @property
    def total(self) -> int:
        return self.latents.shape[2]

    @property
    def size(self) -> int:
        return tile_size(self.latents)

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        latents, rotated = tiles.cut((self.latents, self.rotated), start, stop, rows)
        for_latents, for_rotated = _split(rows, latents)
        return _product(for_latents, latents) + _product(for_rotated, rotated)

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        [latents] = tiles.cut((self.latents,), start, stop, weights)
        return weights @ latents.astype(mx.float32)


def _product(queries: mx.array, keys: mx.array) -> mx.array:
    return queries @ keys.astype(mx.float32).swapaxes(-1, -2)
