"""The cache of plain keys and values for gemma2, which computes attention by groups of heads."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache


class GroupedMaskKVCache(KVCache):  # type: ignore[misc]
    """A KVCache whose batch form makes masks of five dimensions.

    gemma2 has scores [B, G, H / G, L, T] and applies the mask of mlx-lm's batch, [B, 1, L, T], to
    them as it is. That mask does not broadcast; or, if the batch has as many rows as the model has
    groups of heads (B = G), the mask of each row is applied to a group instead.
    """

    @classmethod
    def merge(cls, caches: Sequence[KVCache]) -> "BatchGroupedMaskKVCache":
        return BatchGroupedMaskKVCache.merge(caches)


class BatchGroupedMaskKVCache(BatchKVCache):  # type: ignore[misc]
    """The batch form of GroupedMaskKVCache. Its masks are [B, 1, 1, L, T]."""

    def make_mask(self, N: int, *args: Any, **options: Any) -> mx.array:
        return mx.expand_dims(super().make_mask(N, *args, **options), 1)

    @classmethod
    def merge(cls, caches: Sequence[KVCache]) -> "BatchGroupedMaskKVCache":
        if all(cache.empty() for cache in caches):  # mlx-lm would return a BatchKVCache
            return cls([0] * len(caches))
        merged: BatchGroupedMaskKVCache = super().merge(caches)
        return merged
