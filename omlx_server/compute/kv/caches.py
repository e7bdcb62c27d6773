"""The cache of one full-attention layer, which holds what a scheme makes of keys and values.

    PackedKVCache  one sequence; the likeness of mlx-lm's KVCache
    RowsKVCache    rows of several sequences (compute/kv/rows.py)

Tokens are quantised as they are written, so nothing is ever kept in full precision where the scheme
says so. `keys` and `values` have unused places behind the tokens; () while there is nothing.
"""

import copy
from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from omlx_server.compute.kv.base import Arrays, Mask, PackedKV, Scheme
from omlx_server.compute.kv.row_groups import Part, grown
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
        """Forget the last n tokens; how many those were."""
        n = min(self.offset, n)
        self.offset -= n
        return n

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        mask: Mask = create_attention_mask(
            N, offset=self.offset, return_array=return_array, window_size=window_size
        )
        return mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PackedKV, PackedKV]:
        """Take in keys and values [B, H, T, D]; views of all tokens so far."""
        self.keys = _written(self.keys, self.scheme.quantize_keys(keys), self.offset)
        self.values = _written(self.values, self.scheme.quantize_values(values), self.offset)
        self.offset += keys.shape[2]
        self._dtype = keys.dtype
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[PackedKV, PackedKV]:
        """Those of all tokens so far: gemma3n's later layers attend to an earlier one's."""
        assert self._dtype is not None, "nothing was written"
        keys, values = self._views()
        return PackedKV(keys, self.scheme, self._dtype), PackedKV(values, self.scheme, self._dtype)

    def row(self, index: int) -> Arrays:
        """Views [1, H, offset, F] of what is stored: keys, then values. `index` is 0."""
        keys, values = self._views()
        return *keys, *values

    def _views(self) -> tuple[Arrays, Arrays]:
        keys, values = (
            tuple(array[..., : self.offset, :] for array in arrays)
            for arrays in (self.keys, self.values)
        )
        return keys, values

    def __deepcopy__(self, memo: dict[int, object]) -> "PackedKVCache":
        """The same tokens in a cache that is written to on its own. (An mx.Dtype can't be
        deep-copied, so copy.deepcopy needs this.)"""
        made = copy.copy(self)
        made.keys, made.values = copy.deepcopy((self.keys, self.values), memo)
        return made

    @classmethod
    def merge(cls, caches: "Sequence[PackedKVCache]") -> RowsKVCache:
        """One row of each sequence. What is alone of its length is copied when it is written to by
        both; the sequences stay usable."""
        parts = [Part(cache.keys, cache.values, (cache.offset,)) for cache in caches]
        return RowsKVCache(caches[0].scheme, parts)


def _written(buffers: Arrays, new: Arrays, at: int) -> Arrays:
    """`new` put at place `at` of the buffers, which grow when it does not fit."""
    stop = at + new[0].shape[2]
    if not buffers or stop > buffers[0].shape[2]:
        buffers = grown(buffers, new, at)
    for buffer, array in zip(buffers, new, strict=True):
        buffer[..., at:stop, :] = array
    return buffers
