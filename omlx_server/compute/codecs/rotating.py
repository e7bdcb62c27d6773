"""RotatingKVCache and its batch form: the ring of a sliding layer, its last `max_size` tokens. The
newest token is at `_idx - 1`. After a prefill the ring is in temporal order and may be longer than
the window; once decoding has wrapped it, older tokens follow `_idx`. A rebuilt ring has no padding,
which would be attended to. Wrong drafts are taken out at the end of the temporal order."""

from collections.abc import Callable, Sequence

import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache, dynamic_roll

from omlx_server.compute.architectures.special import InclusiveRing
from omlx_server.compute.codecs import base
from omlx_server.compute.codecs.base import Arrays, Cache, CacheRow, Codec, token_slice
from omlx_server.core.blocks.block import LayerKind
from omlx_server.core.memory.kv import Keeps, LayerKv


class RotatingKVCodec(Codec):
    kind = LayerKind.WINDOW
    classes: tuple[type, ...] = (RotatingKVCache, BatchRotatingKVCache)
    takes_out_drafts = True
    takes_out_by_row = True
    undoes_by_row = False

    def batchable(self, fresh: Cache) -> bool:
        return bool(fresh.keep == 0)  # the batch form forgets `keep`

    def begin_verify(self, cache: Cache, lengths: Sequence[int], width: int) -> None:
        """Put a batch in temporal order, before mlx-lm makes the mask."""
        if isinstance(cache, BatchRotatingKVCache):
            cache._temporal_order()

    def take_out_drafts(self, cache: Cache, counts: Sequence[int]) -> None:
        """Shorten the ring by what all rows take out, then move rows that take out more."""
        fewest = min(counts)
        kept = cache.keys.shape[2] - fewest
        cache.keys, cache.values = cache.keys[:, :, :kept], cache.values[:, :, :kept]
        cache.offset -= fewest
        cache._idx -= fewest
        if isinstance(cache, BatchRotatingKVCache):
            cache._offset -= fewest
            _align_row_ends(cache, mx.array([count - fewest for count in counts]))

    def prepare_undo(self, cache: Cache) -> Callable[[Sequence[int]], None]:
        # Copied, because a forward of one token writes in place.
        before = {name: _copy_of_array(value) for name, value in vars(cache).items()}

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
        if row.length - start > size:
            raise IndexError("these tokens have left the ring")
        own = slice(row.index, row.index + 1)
        arrays = tuple(a[own] for a in (cache.keys, cache.values))
        # Places before `_idx`; negative ones are behind it, at the end of the ring.
        first, last = cache._idx - (row.length - start), cache._idx - (row.length - stop)
        if first >= 0:
            return token_slice(arrays, first, last)
        if last <= 0:
            return token_slice(arrays, first + size, last + size)
        return tuple(
            mx.concatenate([a[..., first + size :, :], a[..., :last, :]], axis=-2) for a in arrays
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


def _align_row_ends(cache: BatchRotatingKVCache, counts: mx.array) -> None:
    """Move row i to the right by counts[i], over the tokens that it takes out."""
    cache.keys, cache.values = (
        dynamic_roll(array, counts[:, None], axis=2) for array in (cache.keys, cache.values)
    )
    cache.left_padding = cache.left_padding + counts
    cache.offset = cache.offset - counts


def _copy_of_array(value: object) -> object:
    return mx.array(value) if isinstance(value, mx.array) else value
