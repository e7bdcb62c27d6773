"""Our quantised caches, alone and in batches: what the scheme made of the tokens, as it is."""

from omlx_server.compute.codecs.base import Arrays, Cache
from omlx_server.compute.codecs.kv import KVCodec
from omlx_server.compute.kv.base import Scheme
from omlx_server.compute.kv.caches import BatchPackedKVCache, PackedKVCache
from omlx_server.compute.kv.classes import BATCHES

_BATCHES: tuple[type[BatchPackedKVCache], ...] = (BatchPackedKVCache, *BATCHES.values())


class QuantizedKVCodec(KVCodec):
    """A part is the arrays of the keys, then as many of the values."""

    classes = tuple(kind for batch in _BATCHES for kind in (batch.solo, batch))

    def describe(self, fresh: Cache) -> str:
        return str(fresh.scheme.name)

    def scheme(self, cache: PackedKVCache) -> Scheme:
        return cache.scheme

    def arrays(self, cache: PackedKVCache) -> Arrays:
        return *cache.keys, *cache.values

    def put(self, fresh: PackedKVCache, arrays: Arrays, tokens: int) -> None:
        half = len(arrays) // 2
        fresh.keys, fresh.values = arrays[:half], arrays[half:]
        fresh.offset = tokens
