"""ChunkedKVCache (llama4): the tokens from `start_position` on. It has no batch form."""

from collections.abc import Sequence

from mlx_lm.models.cache import ChunkedKVCache

from omlx_server.compute.codecs import base
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec, token_slice
from omlx_server.core.blocks.block import LayerKind


class ChunkedKVCodec(Codec):
    kind = LayerKind.WINDOW
    classes = (ChunkedKVCache,)
    takes_out_drafts = True

    def take_out_drafts(self, cache: Cache, counts: Sequence[int]) -> None:
        cache.trim(counts[0])

    def describe(self, fresh: Cache) -> str:
        return f"chunked-kv-c{fresh.chunk_size}"

    def window(self, fresh: Cache) -> int:
        return int(fresh.chunk_size)

    def cut(self, cache: Cache, row: CacheRow, start: int, stop: int) -> Arrays:
        first = cache.start_position
        if start < first:
            raise IndexError("these tokens have left the chunk")
        return token_slice((cache.keys, cache.values), start - first, stop - first)

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        size = min(stop, fresh.chunk_size)
        fresh.keys, fresh.values = base.concatenate(base.newest(parts, size), base.spare_tail(size))
        fresh.offset = stop
        fresh.start_position = stop - size
        return fresh
