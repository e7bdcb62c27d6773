"""Our quantised caches, alone and in batches: what the scheme made of the tokens, as it is."""

from collections.abc import Sequence

from omlx_server.compute.caches import Cache
from omlx_server.compute.codecs.base import Arrays, Row, concatenate, spare_tail
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.classes import BATCHES
from omlx_server.core.layout import Kind


class QuantizedKVCodec:
    """A part is the arrays of the keys, then as many of the values."""

    kind = Kind.DELTA
    stores_decoded = True
    classes = tuple(kind for batch in BATCHES.values() for kind in (batch.solo, batch))

    def describe(self, fresh: Cache) -> str:
        return str(fresh.scheme.name)

    def window(self, fresh: Cache) -> int:
        return 0

    def cut(self, cache: Cache, row: Row, start: int, stop: int) -> Arrays:
        end = cache.offset if isinstance(cache, PackedKVCache) else cache._idx
        first = end - row.length
        at = slice(row.index, row.index + 1)
        return tuple(a[at, :, first + start : first + stop] for a in (*cache.keys, *cache.values))

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        arrays = concatenate(parts, spare_tail(stop))
        half = len(arrays) // 2
        fresh.keys, fresh.values = arrays[:half], arrays[half:]
        fresh.offset = stop
        return fresh
