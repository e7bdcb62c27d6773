"""Plain caches for gemma2, which computes attention by groups of heads."""

from typing import ClassVar

import mlx.core as mx

from omlx_server.compute.kv.rows import RowsKVCache
from omlx_server.compute.kv.schemes.base import Mask
from omlx_server.compute.kv.whole import WholeKVCache, WholeRowsKVCache


class GroupedMaskRowsKVCache(WholeRowsKVCache):
    """The batch form of `GroupedMaskKVCache`. Its masks are [B, 1, 1, L, T]."""

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        mask = super().make_mask(N, return_array, window_size)
        return mx.expand_dims(mask, 1) if isinstance(mask, mx.array) else mask


class GroupedMaskKVCache(WholeKVCache):
    """A WholeKVCache for gemma2's scores [B, G, H / G, L, T]."""

    batch_form: ClassVar[type[RowsKVCache]] = GroupedMaskRowsKVCache
