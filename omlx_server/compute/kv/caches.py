"""The cache of one full-attention layer, which stores keys and values by a scheme.

    PackedKVCache  one sequence; has the interface of mlx-lm's KVCache
    RowsKVCache    rows of several sequences (compute/kv/rows.py)

Tokens are quantised as they are written, so a scheme of few bits never keeps any in full precision.
The buffers `keys` and `values` have unused places behind the tokens; they are () before the first
token.
"""

import copy
from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from omlx_server.compute.kv.base import Arrays, Mask, PackedKV, Scheme
from omlx_server.compute.kv.row_groups import Part, written
from omlx_server.compute.kv.rows import RowsKVCache


class PackedKVCache:
    """One sequence of `offset` tokens, at [..., :offset, :] of the buffers."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self.keys: Arrays = ()
        self.values: Arrays = ()
        self.offset = 0
        self._dtype: mx.Dtype | None = None

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))

    @property
    def state(self) -> tuple[Arrays, Arrays, int]:
        return self.keys, self.values, self.offset

    def size(self) -> int:
        return self.offset

    def empty(self) -> bool:
        return not self.keys

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Forget the last n tokens, or all if there are fewer. Returns how many it forgot."""
        n = min(self.offset, n)
        self.offset -= n
        return n

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        mask: Mask = create_attention_mask(
            N, offset=self.offset, return_array=return_array, window_size=window_size
        )
        return mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PackedKV, PackedKV]:
        """Store keys and values [1, H, T, D] of new tokens. Returns views of all tokens so far."""
        self.keys = written(self.keys, self.scheme.quantize_keys(keys), [self.offset])
        self.values = written(self.values, self.scheme.quantize_values(values), [self.offset])
        self.offset += keys.shape[2]
        self._dtype = keys.dtype
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[PackedKV, PackedKV]:
        """Views of all tokens so far: gemma3n's later layers attend to those of an earlier one."""
        assert self._dtype is not None, "nothing was written"
        keys, values = self._views()
        return PackedKV(keys, self.scheme, self._dtype), PackedKV(values, self.scheme, self._dtype)

    def row(self, index: int) -> Arrays:
        """Views [1, H, offset, features] of the stored arrays: keys, then values. `index` is 0."""
        keys, values = self._views()
        return *keys, *values

    def _views(self) -> tuple[Arrays, Arrays]:
        keys, values = (
            tuple(array[..., : self.offset, :] for array in arrays)
            for arrays in (self.keys, self.values)
        )
        return keys, values

    def __deepcopy__(self, memo: dict[int, object]) -> "PackedKVCache":
        """A cache with the same tokens, which can be written to without changing this one. (An
        mx.Dtype can't be deep-copied, so copy.deepcopy needs this.)"""
        made = copy.copy(self)
        made.keys, made.values = copy.deepcopy((self.keys, self.values), memo)
        return made

    @classmethod
    def merge(cls, caches: "Sequence[PackedKVCache]") -> RowsKVCache:
        """A batch with one row for each cache; the caches stay usable. Rows of about one length are
        copied together; a row that is alone in its length is copied only when it is written to."""
        parts = [Part(cache.keys, cache.values, (cache.offset,)) for cache in caches]
        return RowsKVCache(caches[0].scheme, parts)
