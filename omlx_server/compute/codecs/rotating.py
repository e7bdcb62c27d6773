"""RotatingKVCache and its batch form: a ring of the last `max_size` tokens.

The newest token is at `_idx - 1`. After a prefill the ring is in temporal order and may be longer
than the window; once decoding has wrapped it, older tokens follow `_idx`. A rebuilt ring has no
padding, which would be attended to.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache, dynamic_roll

from omlx_server.compute.architectures.inclusive_ring import InclusiveRing
from omlx_server.compute.codecs import base
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec, token_slice
from omlx_server.core.blocks.cache_layout import LayerKind
from omlx_server.core.memory.kv import Keeps, LayerKv


class RotatingKVCodec(Codec):
    kind = LayerKind.WINDOW
    classes: tuple[type, ...] = (RotatingKVCache, BatchRotatingKVCache)
    cuts_back = True
    cuts_rows_cheaply = True
    puts_rows_back = False

    def batchable(self, fresh: Cache) -> bool:
        return bool(fresh.keep == 0)  # the batch form forgets `keep`

    def begin_verify(self, cache: Cache, lengths: Sequence[int], width: int) -> None:
        """Put a batch in temporal order, before mlx-lm makes the mask."""
        if isinstance(cache, BatchRotatingKVCache):
            cache._temporal_order()

    def cut_back(self, cache: Cache, counts: Sequence[int]) -> None:
        least = min(counts)
        keep = cache.keys.shape[2] - least
        cache.keys, cache.values = cache.keys[:, :, :keep], cache.values[:, :, :keep]
        cache.offset -= least
        cache._idx -= least
        if isinstance(cache, BatchRotatingKVCache):
            cache._offset -= least
            _push_right(cache, mx.array([count - least for count in counts]))

    def undo(self, cache: Cache) -> Callable[[Sequence[int]], None]:
        """A forward of one token writes in place, so it copies the arrays kept here."""
        before = {name: _copy_of(value) for name, value in vars(cache).items()}

        def put_back(counts: Sequence[int]) -> None:
            for name, value in before.items():
                setattr(cache, name, value)

        return put_back

    def reusable(self, fresh: Cache) -> bool:
        return super().reusable(fresh) and self.batchable(fresh)

    def describe(self, fresh: Cache) -> str:
        return f"rotating-kv-w{fresh.max_size}"

    def window(self, fresh: Cache) -> int:
        return int(fresh.max_size)

    def cut(self, cache: Cache, row: CacheRow, start: int, stop: int) -> Arrays:
        size = cache.keys.shape[2]
        oldest_age, newest_age = row.length - start, row.length - stop
        if oldest_age > size:
            raise IndexError("these tokens have left the ring")
        first = cache._idx - oldest_age
        last = cache._idx - newest_age
        at = slice(row.index, row.index + 1)
        arrays = tuple(a[at] for a in (cache.keys, cache.values))
        if first >= 0:
            return token_slice(arrays, first, last)
        if last <= 0:
            return token_slice(arrays, first % size, (last - 1) % size + 1)
        return tuple(
            mx.concatenate([a[..., first % size :, :], a[..., :last, :]], axis=-2) for a in arrays
        )

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        size = min(stop, fresh.max_size)
        fresh.keys, fresh.values = base.concatenate(base.newest(parts, size))
        fresh.offset = stop
        fresh._idx = size
        return fresh

    def layer_kv(self, cache: Cache) -> LayerKv:
        token = base.token_bytes((cache.keys, cache.values))
        return LayerKv(Keeps.RING, token, window=cache.max_size)

    def fill(self, fresh: Cache, short: Cache, tokens: int, chunk: int) -> None:
        size = min(tokens, fresh.max_size + chunk - 1)
        fresh.keys, fresh.values = base.zeros((short.keys, short.values), size)
        fresh.offset = tokens
        fresh._idx = size


class InclusiveRingCodec(RotatingKVCodec):
    """The codec of rings whose decode window is one token shorter than their prefill window.
    Decoded tokens therefore never become blocks."""

    classes = (InclusiveRing,)
    stores_decoded = False
    groupable = False

    def describe(self, fresh: Cache) -> str:
        return f"inclusive-{super().describe(fresh)}"

    def begin_decode(self, cache: Cache) -> None:
        cache.begin_decode()


def _push_right(cache: BatchRotatingKVCache, counts: mx.array) -> None:
    cache.keys, cache.values = (
        dynamic_roll(array, counts[:, None], axis=2) for array in (cache.keys, cache.values)
    )
    cache.left_padding = cache.left_padding + counts
    cache.offset = cache.offset - counts


def _copy_of(value: object) -> object:
    return mx.array(value) if isinstance(value, mx.array) else value
