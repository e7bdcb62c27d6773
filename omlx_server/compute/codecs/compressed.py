"""LayerCache (deepseek_v41): a window, compressed groups of tokens, an open one. No batch form."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx_lm.models.deepseek_v41 import LayerCache

from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec
from omlx_server.core.blocks.block import LayerKind

_FIELDS = ("window", "compress_kv", "index_k", "pending_kv", "pending_gate")


class CompressedCodec(Codec):
    """The codec of LayerCache. None is stored as an array without elements."""

    kind = LayerKind.CHECKPOINT
    classes = (LayerCache,)

    def prepare_undo(self, cache: Cache) -> Callable[[Sequence[int]], None]:
        offset = cache.offset
        arrays = [getattr(cache, name) for name in _FIELDS]
        copies = [None if array is None else mx.array(array) for array in arrays]

        def put_back(counts: Sequence[int]) -> None:
            cache.offset = offset
            for name, copy in zip(_FIELDS, copies, strict=True):
                setattr(cache, name, copy)

        return put_back

    def describe(self, fresh: Cache) -> str:
        return f"compressed-w{fresh.window_size}"

    def cut(self, cache: Cache, row: CacheRow, start: int, stop: int) -> Arrays:
        fields = [getattr(cache, name) for name in _FIELDS]
        return tuple(mx.zeros((1, 0)) if array is None else array for array in fields)

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        for name, array in zip(_FIELDS, parts[-1], strict=True):
            setattr(fresh, name, None if array.ndim == 2 else mx.array(array))
        fresh.offset = stop
        return fresh
