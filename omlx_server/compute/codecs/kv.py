"""KVCache and BatchKVCache: keys and values of every token, in order, plain or
quantised. Spans are tokens of stored blocks that a cache reads where they are."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache

from omlx_server.compute.codecs import base
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec
from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.latent import (
    GroupedMaskKVCache,
    GroupedMaskRowsKVCache,
    LatentKVCache,
    LatentRowsKVCache,
    WholeKVCache,
    WholeRowsKVCache,
)
from omlx_server.compute.kv.rows import RowsKVCache
from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.schemes.plain import Plain
from omlx_server.compute.kv.spans import Spans, Strip
from omlx_server.core.blocks.block import LayerKind
from omlx_server.core.memory.kv import Keeps, LayerKv, places


# `Codec` says what the class attributes mean.
class KVCodec(Codec):
    """The codec of plain caches. A part is the array of the keys, then that of the values."""

    kind = LayerKind.DELTA
    keeps = Keeps.PADDED
    classes: tuple[type, ...] = (KVCache, BatchKVCache)
    takes_out_drafts = True

    def batchable(self, fresh: Cache) -> bool:
        return True

    def finalize(self, cache: Cache) -> None:
        """mlx-lm's `finalize` fails on the empty cache of a layer without attention."""
        if cache.keys is None:
            cache._right_padding = None
        else:
            cache.finalize()

    def take_out_drafts(self, cache: Cache, counts: Sequence[int]) -> None:
        if cache.keys is None:
            return
        # What a row takes out beyond the fewest is padding, which moves to its left end.
        fewest = min(counts)
        cache.trim(fewest)
        padding = [count - fewest for count in counts]
        if any(padding):
            cache.prepare(right_padding=padding)
            cache.finalize()

    def describe(self, fresh: Cache) -> str:
        return "kv"

    def cut(self, cache: Cache, row: CacheRow, start: int, stop: int) -> Arrays:
        """Return () for the empty cache of a layer without attention (nemotron-nas)."""
        if cache.empty():
            return ()
        first = cache.size() - row.length
        own = slice(row.index, row.index + 1)
        return tuple(a[own, :, first + start : first + stop] for a in self.arrays(cache))

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        if parts[0]:
            self.put(fresh, base.concatenate(parts, base.spare_tail(stop)), stop)
        return fresh

    def layer_kv(self, cache: Cache) -> LayerKv:
        return LayerKv(self.keeps, base.token_bytes(self.arrays(cache)))

    def fill(self, fresh: Cache, short: Cache, tokens: int, chunk: int) -> None:
        self.put(fresh, base.zeros(self.arrays(short), places(tokens)), tokens)

    def arrays(self, cache: Cache) -> Arrays:
        return cache.keys, cache.values

    def put(self, fresh: Cache, arrays: Arrays, tokens: int) -> None:
        fresh.keys, fresh.values = arrays
        fresh.offset = tokens


class PackedKVCodec(KVCodec):
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
    # Models that compute with keys and values by themselves are given whole arrays.
    return isinstance(cache, WholeKVCache) and not isinstance(cache, LatentKVCache)
