"""Plain keys and values for models that compute attention by groups of heads themselves."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache


class GroupedMaskKVCache(KVCache):  # type: ignore[misc]
    """A KVCache whose batch form gives masks of five dimensions.

    gemma2 has scores [B, G, H / G, L, T] and puts the mask of a batch, [B, 1, L, T], over them as
    it is: it does not fit, or, where a batch has as many rows as the model has groups, the mask of
    a row falls on a group.
    """

    @classmethod
    def merge(cls, caches: Sequence[KVCache]) -> "BatchGroupedMaskKVCache":
        return BatchGroupedMaskKVCache.merge(caches)


class BatchGroupedMaskKVCache(BatchKVCache):  # type: ignore[misc]
    """Rows of several sequences; masks are [B, 1, 1, L, T]."""

    def make_mask(self, N: int, *args: Any, **options: Any) -> mx.array:
        return mx.expand_dims(super().make_mask(N, *args, **options), 1)

    @classmethod
    def merge(cls, caches: Sequence[KVCache]) -> "BatchGroupedMaskKVCache":
        if all(cache.empty() for cache in caches):  # mlx-lm makes one of its own class of these
            return cls([0] * len(caches))
        merged: BatchGroupedMaskKVCache = super().merge(caches)
        return merged
