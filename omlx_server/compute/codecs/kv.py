"""KVCache and BatchKVCache: keys and values of every token, in order."""

from collections.abc import Sequence

from mlx_lm.models.cache import BatchKVCache, KVCache

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
from omlx_server.compute.grouped_mask import BatchGroupedMaskKVCache, GroupedMaskKVCache
from omlx_server.core.layout import Kind
from omlx_server.core.memory.kv import Keeps, LayerKv, places


class KVCodec(Codec):
    kind = Kind.DELTA
    classes: tuple[type, ...] = (
        KVCache,
        BatchKVCache,
        GroupedMaskKVCache,
        BatchGroupedMaskKVCache,
    )

    def batchable(self, fresh: Cache) -> bool:
        return True

    def finalize(self, cache: Cache) -> None:
        """mlx-lm fails where a layer without attention has left its cache empty (nemotron-nas)."""
        if cache.keys is None:
            cache._right_padding = None
        else:
            cache.finalize()

    def describe(self, fresh: Cache) -> str:
        return "kv"

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

    def layer_kv(self, cache: Cache) -> LayerKv:
        return LayerKv(Keeps.GROWING, token_bytes((cache.keys, cache.values)))

    def fill(self, fresh: Cache, short: Cache, tokens: int, chunk: int) -> None:
        fresh.keys, fresh.values = zeros((short.keys, short.values), places(tokens))
        fresh.offset = tokens
