"""QuantizedKVCache: keys and values as (packed, scales, biases), never as full-precision copies."""

from collections.abc import Sequence

from mlx_lm.models.cache import QuantizedKVCache

from omlx_server.compute.caches import Cache
from omlx_server.compute.codecs.base import Arrays, Row, concatenate, spare_tail, token_slice
from omlx_server.core.layout import Kind


class QuantizedKVCodec:
    kind = Kind.DELTA
    classes = (QuantizedKVCache,)

    def describe(self, fresh: Cache) -> str:
        return f"quantized-kv-{fresh.bits}b-g{fresh.group_size}"

    def window(self, fresh: Cache) -> int:
        return 0

    def cut(self, cache: Cache, row: Row, start: int, stop: int) -> Arrays:
        return token_slice((*cache.keys, *cache.values), start, stop)

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        arrays = concatenate(parts, spare_tail(stop))
        # mlx-lm writes new tokens into these lists in place.
        fresh.keys, fresh.values = list(arrays[:3]), list(arrays[3:])
        fresh.offset = stop
        return fresh
