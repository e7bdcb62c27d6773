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

from omlx_server.compute.kv.caches import PackedKV, PackedKVCache
from omlx_server.compute.kv.rows import RowsKV, RowsKVCache
from omlx_server.compute.kv.schemes.base import Mask


class WholeRowsKVCache(RowsKVCache):
    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        """Return None, "causal" or bool [B, 1, N, longest]. A window includes the query."""
        lengths = self.lengths
        longest = max(lengths)
        if min(lengths) == longest and window_size is None and not (return_array and N > 1):
            return "causal" if N > 1 else None
        query_positions = (mx.array(lengths)[:, None] + mx.arange(N))[:, None, :, None]
        key_positions = mx.arange(longest + N)
        is_seen = key_positions <= query_positions
        if window_size is not None:
            is_seen = is_seen & (key_positions > query_positions - window_size)
        return is_seen

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        return self._in_one_array(0), self._in_one_array(1)

    def _in_one_array(self, side: int) -> mx.array:
        """Return keys (`side` 0) or values (1) [B, H, longest, D]."""
        lengths = self.lengths
        [like] = (self._groups[0].keys, self._groups[0].values)[side]
        if self._is_one_array:
            return like[:, :, : max(lengths)]
        rows = mx.zeros((len(lengths), like.shape[1], max(lengths), like.shape[3]), like.dtype)
        for group in self._groups:
            [own_tokens] = (group.keys, group.values)[side]
            for place, row in enumerate(group.rows):
                for span in group.spans[place]:
                    [span_tokens] = span.arrays()[side]
                    rows[row, :, span.start : span.stop] = span_tokens[0]
                first, length = group.first(place), group.lengths[place]
                rows[row, :, first : first + length] = own_tokens[place, :, :length]
        return rows

    @property
    def _is_one_array(self) -> bool:
        """Whether one group holds all rows, in order and without spans."""
        [group, *others] = self._groups
        return not (others or group.has_spans) and group.rows == tuple(range(len(group.rows)))


class WholeKVCache(PackedKVCache):
    """A cache of plain numbers that returns arrays."""

    batch_form: ClassVar[type[RowsKVCache]] = WholeRowsKVCache

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        keys, values = self.row(0)
        return keys, values


class GroupedMaskRowsKVCache(WholeRowsKVCache):
    """The batch form of `GroupedMaskKVCache`. Its masks are [B, 1, 1, L, T]."""

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        mask = super().make_mask(N, return_array, window_size)
        return mx.expand_dims(mask, 1) if isinstance(mask, mx.array) else mask


class GroupedMaskKVCache(WholeKVCache):
    """A WholeKVCache for gemma2's scores [B, G, H / G, L, T]."""

    batch_form: ClassVar[type[RowsKVCache]] = GroupedMaskRowsKVCache


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
