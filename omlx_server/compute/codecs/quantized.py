"""Our full-attention caches, quantised or plain: parts hold what the scheme stores."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from omlx_server.compute.codecs import base
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow
from omlx_server.compute.codecs.kv import KVCodec
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.latent import LatentKVCache, LatentRowsKVCache
from omlx_server.compute.kv.rows import RowsKVCache
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.plain import Plain
from omlx_server.compute.kv.spans import Spans, Strip
from omlx_server.compute.kv.whole import (
    GroupedMaskKVCache,
    GroupedMaskRowsKVCache,
    WholeKVCache,
    WholeRowsKVCache,
)
from omlx_server.core.memory.kv import Keeps, LayerKv


class QuantizedKVCodec(KVCodec):
    """The codec of our caches. A part is the keys' arrays, then the values'."""

    classes = (
        *(PackedKVCache, RowsKVCache),
        *(LatentKVCache, LatentRowsKVCache),
        *(WholeKVCache, WholeRowsKVCache),
        *(GroupedMaskKVCache, GroupedMaskRowsKVCache),
    )
    keeps = Keeps.GROWING
    by_reference = True
    takes_out_by_row = True

    def take_out_drafts(self, cache: PackedKVCache | RowsKVCache, counts: Sequence[int]) -> None:
        if isinstance(cache, RowsKVCache):
            cache.forget_last(counts)
        else:
            cache.trim(counts[0])

    def describe(self, fresh: Cache) -> str:
        return str(fresh.scheme.name)

    def scheme(self, cache: PackedKVCache) -> Scheme | None:
        return None if isinstance(cache.scheme, Plain) else cache.scheme

    def cut(
        self, cache: PackedKVCache | RowsKVCache, row: CacheRow, start: int, stop: int
    ) -> Arrays:
        if cache.empty():
            return ()
        return tuple(array[:, :, start:stop] for array in cache.row(row.index))

    def arrays(self, cache: PackedKVCache) -> Arrays:
        return *cache.keys, *cache.values

    def put(self, fresh: PackedKVCache, arrays: Arrays, tokens: int, spans: Spans = ()) -> None:
        half = len(arrays) // 2
        fresh.put(arrays[:half], arrays[half:], tokens, spans)

    def join_behind(
        self, fresh: PackedKVCache, spans: Spans, parts: Sequence[Arrays], stop: int
    ) -> None:
        tokens = stop - spans[-1].stop
        arrays = base.concatenate(parts, base.spare_tail(tokens)) if parts else ()
        self.put(fresh, arrays, tokens, spans)

    def adopts(self, fresh: PackedKVCache, strip: Strip) -> bool:
        """True where reading spans costs more: where they are widened to float32 or copied."""
        widens = fresh.scheme.is_fused and strip.holder.keys[0].dtype != mx.float32
        return widens or _copies_spans(fresh)

    def layer_kv(self, cache: PackedKVCache) -> LayerKv:
        latent = isinstance(cache, LatentKVCache)
        return replace(super().layer_kv(cache), reads_padding=_copies_spans(cache), latent=latent)


def _copies_spans(cache: PackedKVCache) -> bool:
    return isinstance(cache, WholeKVCache) and not isinstance(cache, LatentKVCache)
