"""Caches for latent attention (DeepSeek-AI, DeepSeek-V2, 2024): one latent and one rotated key for
each token, for all heads. mlx-lm's models decode on the latents, which are keys and values:

    added = (rotated queries * scale) @ rotated keys.swapaxes(-1, -2)
    scaled_dot_product_attention(queries, latents, latents, scale=scale, mask=added)

Where rows differ in length or refer to spans, `RotatedKeys` turns the product into `RotatedScores`,
which our hook receives as the mask.
"""

from dataclasses import dataclass
from typing import ClassVar

import mlx.core as mx

from omlx_server.compute.kv.caches import PackedKV
from omlx_server.compute.kv.rows import RowsKV, RowsKVCache
from omlx_server.compute.kv.schemes.base import Mask
from omlx_server.compute.kv.whole import WholeKVCache, WholeRowsKVCache

Stored = PackedKV | RowsKV


@dataclass(frozen=True, slots=True, eq=False)
class RotatedScores:
    """Rotated queries [B, Hq, 1, Dr] * scale and the keys for their product."""

    queries: mx.array
    keys: Stored


class RotatedKeys(mx.array):
    """An empty array: Python asks only a subclass of mx.array for its product first."""

    def __init__(self, keys: Stored) -> None:
        super().__init__(0)
        self._keys = keys

    def swapaxes(self, *axes: object) -> "RotatedKeys":  # type: ignore[override]
        return self

    def __rmatmul__(self, queries: mx.array) -> RotatedScores:  # type: ignore[misc]
        return RotatedScores(queries, self._keys)


class LatentRowsKVCache(WholeRowsKVCache):
    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        """Return None in a decode."""
        if N == 1 and window_size is None:
            return None
        return super().make_mask(N, return_array, window_size)

    def update_and_fetch(
        self, keys: mx.array, values: mx.array
    ) -> tuple[mx.array | RowsKV, mx.array]:
        """Store latents [B, 1, T, Dc] and rotated keys [B, 1, T, Dr]."""
        self._store(keys, values)
        if keys.shape[2] > 1 or (self._is_one_array and len(set(self.lengths)) == 1):
            return self.keys_and_values()
        latents, rotated = self.stored()
        return latents, RotatedKeys(rotated)


class LatentKVCache(WholeKVCache):
    batch_form: ClassVar[type[RowsKVCache]] = LatentRowsKVCache

    def update_and_fetch(
        self, keys: mx.array, values: mx.array
    ) -> tuple[mx.array | PackedKV, mx.array]:
        self._store(keys, values)
        if keys.shape[2] > 1 or not self.spans:
            return self.keys_and_values()
        latents, rotated = self.stored()
        return latents, RotatedKeys(rotated)
