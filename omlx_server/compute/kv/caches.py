"""The cache of one full-attention layer of one sequence, quantised as tokens are written."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import ReferenceType, ref

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from omlx_server.compute.kv.row_groups import GroupPart, append_tokens
from omlx_server.compute.kv.rows import RowsKVCache
from omlx_server.compute.kv.schemes.base import Arrays, Mask, Scheme, views
from omlx_server.compute.kv.spans import (
    Buffers,
    Span,
    Spans,
    Strip,
    join_pieces,
    referent,
    spans_before,
)


@dataclass(frozen=True, slots=True, eq=False)
class PackedKV:
    """Keys or values of one sequence, for our attention: `arrays` behind `spans`."""

    arrays: Arrays
    scheme: Scheme
    dtype: mx.Dtype
    spans: Spans = ()

    def astype(self, dtype: mx.Dtype) -> "PackedKV":
        """Attention computes in the dtype of its queries."""
        return self


class PackedKVCache:
    """Read-only `spans`, then own tokens in buffers, with the interface of mlx-lm's KVCache."""

    batch_form: ClassVar[type[RowsKVCache]] = RowsKVCache

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self.spans: Spans = ()
        self.own_tokens = 0
        self._buffers = Buffers(owner=ref(self))
        self._strip: ReferenceType[Strip] | None = None
        self._dtype: mx.Dtype | None = None

    def put(self, keys: Arrays, values: Arrays, tokens: int, spans: Spans = ()) -> None:
        """Fill an empty cache. Nothing else may hold the buffers, or a write copies them."""
        self._buffers.keys, self._buffers.values = keys, values
        self.own_tokens, self.spans = tokens, spans

    def adopt(self, strip: Strip, tokens: int) -> None:
        """Continue an empty cache after the first tokens of an idle strip from token 0 on."""
        assert isinstance(strip.holder, Buffers) and strip.holder.is_idle and not strip.first
        self._buffers, self._strip, self.own_tokens = strip.holder, ref(strip), tokens
        self._buffers.owner = ref(self)

    @property
    def keys(self) -> Arrays:
        return self._buffers.keys

    @keys.setter
    def keys(self, keys: Sequence[mx.array]) -> None:
        """Pipelined models make the keys depend on what they send on."""
        self._buffers.keys = tuple(keys)

    @property
    def values(self) -> Arrays:
        return self._buffers.values

    @property
    def first(self) -> int:
        return self.spans[-1].stop if self.spans else 0

    @property
    def offset(self) -> int:
        return self.first + self.own_tokens

    @property
    def nbytes(self) -> int:
        return self._buffers.nbytes

    @property
    def state(self) -> tuple[Arrays, Arrays, int]:
        return self.keys, self.values, self.offset

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return not (self.keys or self.spans)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Forget up to n last tokens and return their number."""
        forgotten = min(self.offset, n)
        kept = self.offset - forgotten
        strip = self._living_strip
        if strip is not None and strip.has_tokens_after(kept):
            keys, values = tuple(map(mx.array, self.keys)), tuple(map(mx.array, self.values))
            strip.move(Buffers(keys, values))
            self._strip = None
        self.spans = spans_before(self.spans, kept)
        self.own_tokens = kept - self.first
        return forgotten

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        mask: Mask = create_attention_mask(
            N, offset=self.offset, return_array=return_array, window_size=window_size
        )
        return mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Store keys and values [1, H, T, D] of new tokens."""
        self._store(keys, values)
        return self.keys_and_values()

    def _store(self, keys: mx.array, values: mx.array) -> None:
        buffers, lengths = self._buffers, [self.own_tokens]
        new_keys, new_values = self.scheme.quantize(keys, values)
        buffers.keys = append_tokens(buffers.keys, new_keys, lengths)
        buffers.values = append_tokens(buffers.values, new_values, lengths)
        self.own_tokens += keys.shape[2]
        self._dtype = keys.dtype

    def keys_and_values(self) -> tuple[Any, Any]:
        return self.stored()

    def stored(self) -> tuple[PackedKV, PackedKV]:
        assert self._dtype is not None, "nothing was written"
        keys, values = self._own_views()
        return (
            PackedKV(keys, self.scheme, self._dtype, self.spans),
            PackedKV(values, self.scheme, self._dtype, self.spans),
        )

    def row(self, index: int) -> Arrays:
        """Return keys, then values [1, H, offset, F]: views, or copies if there are spans."""
        keys, values = join_pieces([*(span.arrays() for span in self.spans), self._own_views()])
        return *keys, *values

    def strip(self, index: int) -> Strip:
        strip = self._living_strip
        if strip is None:
            strip = Strip(self._buffers, first=self.first)
            self._strip = ref(strip)
        return strip

    def hand_over(self) -> None: ...
    def rejoin(self) -> None:
        strip = referent(self._strip)
        if strip is not None:
            strip.move(self._buffers)

    def lose(self) -> None:
        strip = referent(self._strip)
        if strip is not None:
            strip.lose()

    def lost_rows(self) -> list[int]:
        return [0] if any(span.segment.run.is_lost for span in self.spans) else []

    def reading_span(self, span: Span) -> "PackedKVCache":
        """Return a copy of this cache that reads `span` instead of its own tokens in it."""
        cache = type(self)(self.scheme)
        tokens, start = self.offset - span.stop, span.stop - self.first
        keys, values = (
            tuple(map(mx.contiguous, views(arrays, start, None))) if tokens else ()
            for arrays in (self.keys, self.values)
        )
        cache.put(keys, values, tokens, (*self.spans, span))
        cache._dtype = self._dtype
        return cache

    def _own_views(self) -> tuple[Arrays, Arrays]:
        tokens = self.own_tokens
        return views(self.keys, 0, tokens), views(self.values, 0, tokens)

    def __deepcopy__(self, memo: dict[int, object]) -> "PackedKVCache":
        # copy.deepcopy cannot copy an mx.Dtype.
        cache = type(self)(self.scheme)
        keys, values = copy.deepcopy((self.keys, self.values), memo)
        cache.put(keys, values, self.own_tokens, self.spans)
        cache._dtype = self._dtype
        return cache

    @classmethod
    def merge(cls, caches: "Sequence[PackedKVCache]") -> RowsKVCache:
        """Return a batch, to which blocks refer from now on. These caches stay usable."""
        parts = [
            GroupPart(own.keys, own.values, (own.own_tokens,), (own.spans,), (own._living_strip,))
            for own in caches
        ]
        return cls.batch_form(caches[0].scheme, parts)

    @property
    def _living_strip(self) -> Strip | None:
        """The strip, if it is alive and still in these buffers."""
        strip = referent(self._strip)
        return strip if strip is not None and strip.holder is self._buffers else None
