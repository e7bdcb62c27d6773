"""Our quantised caches, alone and in batches: what the scheme made of the tokens, as it is."""

from collections.abc import Sequence

from omlx_server.compute.codecs.base import (
    Arrays,
    Cache,
    Codec,
    Row,
    concatenate,
    spare_tail,
    token_bytes,
    zeros,
)
from omlx_server.compute.kv.base import Scheme
from omlx_server.compute.kv.caches import BatchPackedKVCache, PackedKVCache
from omlx_server.compute.kv.classes import BATCHES
from omlx_server.core.layout import Kind
from omlx_server.core.memory.kv import Keeps, LayerKv, places


class QuantizedKVCodec(Codec):
    """A part is the arrays of the keys, then as many of the values."""

    kind = Kind.DELTA
    classes = (
        PackedKVCache,
        BatchPackedKVCache,
        *(kind for batch in BATCHES.values() for kind in (batch.solo, batch)),
    )

    def batchable(self, fresh: Cache) -> bool:
        return True

    def describe(self, fresh: Cache) -> str:
        return str(fresh.scheme.name)

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

    def scheme(self, cache: PackedKVCache) -> Scheme:
        return cache.scheme

    def layer_kv(self, cache: Cache) -> LayerKv:
        return LayerKv(Keeps.GROWING, token_bytes((*cache.keys, *cache.values)))

    def fill(self, fresh: Cache, short: Cache, tokens: int, chunk: int) -> None:
        fresh.keys, fresh.values = (zeros(a, places(tokens)) for a in (short.keys, short.values))
        fresh.offset = tokens
