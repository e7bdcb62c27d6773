"""ArraysCache: a recurrent state in any number of slots, as it is after one position."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec
from omlx_server.core.blocks.block import LayerKind
from omlx_server.core.memory.kv import Keeps, LayerKv


class ArraysCodec(Codec):
    """The codec of recurrent states. An empty slot is stored as an array without elements."""

    kind = LayerKind.CHECKPOINT
    classes = (ArraysCache,)
    recurrent = True

    def batchable(self, fresh: Cache) -> bool:
        return True

    def describe(self, fresh: Cache) -> str:
        return f"arrays-{len(fresh.cache)}"

    def cut(self, cache: Cache, row: CacheRow, start: int, stop: int) -> Arrays:
        own = slice(row.index, row.index + 1)
        return tuple(mx.zeros((1, 0)) if slot is None else slot[own] for slot in cache.cache)

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        # Copied, because a model may update its state in place, and the stored one must not change.
        fresh.cache = [None if slot.size == 0 else mx.array(slot) for slot in parts[-1]]
        return fresh

    def begin_verify(self, cache: Cache, lengths: Sequence[int], width: int) -> None:
        if any(length < width for length in lengths):
            cache.prepare(lengths=list(lengths))

    def end_verify(self, cache: Cache) -> None:
        if cache.lengths is not None:
            cache.finalize()

    def prepare_undo(self, cache: Cache) -> Callable[[Sequence[int]], None]:
        """Return a function that gives rows that forget all their tokens the earlier state."""
        # Copied without a copy of the bytes, because a model may update its state in place.
        slots = [None if slot is None else mx.array(slot) for slot in cache.cache]

        def put_back(counts: Sequence[int]) -> None:
            goes_back = mx.array([count == max(counts) for count in counts])
            pairs = zip(slots, cache.cache, strict=True)
            cache.cache = [_old_rows_where(goes_back, old, new) for old, new in pairs]

        return put_back

    def layer_kv(self, cache: Cache) -> LayerKv:
        return LayerKv(Keeps.CONSTANT, cache.nbytes)

    def fill(self, fresh: Cache, short: Cache, tokens: int, chunk: int) -> None:
        fresh.cache = [None if slot is None else mx.zeros_like(slot) for slot in short.cache]


def _old_rows_where(back: mx.array, old: mx.array | None, new: mx.array | None) -> mx.array | None:
    # A slot that the forward made or resized goes back for all rows.
    if old is None or new is None or old.shape != new.shape:
        return old
    return mx.where(back.reshape(-1, *[1] * (old.ndim - 1)), old, new)
