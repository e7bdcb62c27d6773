"""KVCache and BatchKVCache: keys and values of every token, in order."""

from collections.abc import Sequence

from mlx_lm.models.cache import BatchKVCache, KVCache

from omlx_server.compute.codecs import base
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec
from omlx_server.core.blocks.cache_layout import LayerKind
from omlx_server.core.memory.kv import Keeps, LayerKv, places


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
