"""RotatingKVCache and its batch form: a ring of the last `max_size` tokens.

The newest token is at `_idx - 1`. After a prefill the ring is in temporal order and may be longer
than the window; once decoding has wrapped it, older tokens follow behind `_idx`. Tokens are cut as
they pass, so a ring can be rebuilt at any boundary, in temporal order and never padded: a zero in a
ring would be attended to.
"""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache

from omlx_server.compute.caches import Cache
from omlx_server.compute.codecs.base import Arrays, Row, concatenate, newest, token_slice
from omlx_server.core.layout import Kind


class RotatingKVCodec:
    kind = Kind.WINDOW
    stores_decoded = True
    classes: tuple[type, ...] = (RotatingKVCache, BatchRotatingKVCache)

    def describe(self, fresh: Cache) -> str:
        return f"rotating-kv-w{fresh.max_size}"

    def window(self, fresh: Cache) -> int:
        return int(fresh.max_size)

    def cut(self, cache: Cache, row: Row, start: int, stop: int) -> Arrays:
        """Raises IndexError when the ring no longer holds the tokens."""
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
        held = min(stop, fresh.max_size)
        fresh.keys, fresh.values = concatenate(newest(parts, held))
        fresh.offset = stop
        fresh._idx = held
        return fresh
