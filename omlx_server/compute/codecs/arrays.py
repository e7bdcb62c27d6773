"""ArraysCache: recurrent state of any number of slots. All of it belongs to one boundary."""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from omlx_server.compute.caches import Cache
from omlx_server.compute.codecs.base import Arrays, Row
from omlx_server.core.layout import Kind


class ArraysCodec:
    """An empty slot is stored as an array without elements."""

    kind = Kind.CHECKPOINT
    stores_decoded = True
    classes = (ArraysCache,)

    def describe(self, fresh: Cache) -> str:
        return f"arrays-{len(fresh.cache)}"

    def window(self, fresh: Cache) -> int:
        return 0

    def cut(self, cache: Cache, row: Row, start: int, stop: int) -> Arrays:
        at = slice(row.index, row.index + 1)
        return tuple(mx.zeros((1, 0)) if slot is None else slot[at] for slot in cache.cache)

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        # Copied: a model may update its state in place, and the stored one stays as it is.
        fresh.cache = [None if slot.size == 0 else mx.array(slot) for slot in parts[-1]]
        return fresh
