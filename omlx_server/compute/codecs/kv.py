"""KVCache and BatchKVCache: keys and values of every token, in order."""

from collections.abc import Sequence

from mlx_lm.models.cache import BatchKVCache, KVCache

from omlx_server.compute.caches import Cache
from omlx_server.compute.codecs.base import Arrays, Row, concatenate, spare_tail
from omlx_server.compute.grouped_mask import BatchGroupedMaskKVCache, GroupedMaskKVCache
from omlx_server.core.layout import Kind


class KVCodec:
    kind = Kind.DELTA
    stores_decoded = True
    classes = (KVCache, BatchKVCache, GroupedMaskKVCache, BatchGroupedMaskKVCache)

    def describe(self, fresh: Cache) -> str:
        return "kv"

    def window(self, fresh: Cache) -> int:
        return 0

    def cut(self, cache: Cache, row: Row, start: int, stop: int) -> Arrays:
        """Nothing of the cache of a layer without attention (nemotron-nas), which stays empty."""
        if cache.keys is None:
            return ()
        end = cache.offset if isinstance(cache, KVCache) else cache._idx
        first = end - row.length
        at = slice(row.index, row.index + 1)
        return tuple(a[at, :, first + start : first + stop] for a in (cache.keys, cache.values))

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        if not parts[0]:
            return fresh
        fresh.keys, fresh.values = concatenate(parts, spare_tail(stop))
        fresh.offset = stop
        return fresh
