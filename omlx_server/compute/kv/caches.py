"""The cache of one full-attention layer, quantised as tokens are written to it.

    PackedKVCache       one sequence; the likeness of mlx-lm's KVCache
    BatchPackedKVCache  rows of several sequences, padded on the left to one length; the likeness of
                        its BatchKVCache

Nothing is ever kept in full precision. `keys` and `values` are what the scheme made of them, with
unused places behind the tokens; () while there is nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import create_attention_mask, dynamic_roll

from omlx_server.compute.kv.base import Arrays, Mask, PackedKV, Scheme


class _Store:
    """Buffers that grow by `step` tokens, as those of mlx-lm's caches do."""

    step: ClassVar[int] = 256

    # A cache that has these two makes mlx-lm call its quantised attention, which is where we are.
    bits: ClassVar[None] = None
    group_size: ClassVar[None] = None

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme
        self.keys: Arrays = ()
        self.values: Arrays = ()

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))

    def empty(self) -> bool:
        return not self.keys

    def is_trimmable(self) -> bool:
        return True

    def _write(self, keys: mx.array, values: mx.array, at: int) -> None:
        """Put new tokens [B, H, T, D] behind the `at` that are held."""
        self.keys = _written(self.keys, self.scheme.quantize_keys(keys), at, self.step)
        self.values = _written(self.values, self.scheme.quantize_values(values), at, self.step)

    def _views(self, stop: int) -> tuple[PackedKV, PackedKV]:
        keys = tuple(array[..., :stop, :] for array in self.keys)
        values = tuple(array[..., :stop, :] for array in self.values)
        return PackedKV(keys, self.scheme), PackedKV(values, self.scheme)

    def _change(self, change: Callable[[mx.array], mx.array]) -> None:
        """The same to every array."""
        self.keys = tuple(map(change, self.keys))
        self.values = tuple(map(change, self.values))


class PackedKVCache(_Store):
    """One sequence of `offset` tokens, at [..., :offset, :] of the buffers."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme)
        self.offset = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PackedKV, PackedKV]:
        """Take in keys and values [B, H, T, D]; views of all tokens so far."""
        self._write(keys, values, self.offset)
        self.offset += keys.shape[2]
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[PackedKV, PackedKV]:
        return self._views(self.offset)

    @property
    def state(self) -> tuple[Arrays, Arrays, int]:
        return self.keys, self.values, self.offset

    def size(self) -> int:
        return self.offset

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

    @classmethod
    def merge(cls, caches: "Sequence[PackedKVCache]") -> "BatchPackedKVCache":
        """One row of each sequence. Copies; the sequences stay usable."""
        return BatchPackedKVCache.merge(caches)


class BatchPackedKVCache(_Store):
    """The last token of every row is at `_idx` - 1. Row i has `offset[i]` tokens, and before them
    `left_padding[i]` places that a mask hides."""

    solo: ClassVar[type[PackedKVCache]] = PackedKVCache

    def __init__(self, scheme: Scheme, left_padding: list[int]) -> None:
        super().__init__(scheme)
        self.left_padding = mx.array(left_padding)
        self.offset = -self.left_padding
        self._idx = 0
        self._right_padding: mx.array | None = None

    @classmethod
    def merge(cls, caches: Sequence[PackedKVCache]) -> "BatchPackedKVCache":
        """See `PackedKVCache.merge`."""
        length = max(cache.offset for cache in caches)
        batch = cls(caches[0].scheme, [length - cache.offset for cache in caches])
        size = _with_spare(length, cls.step)
        batch.keys = _aligned([(c.keys, 1, c.offset) for c in caches], length, size)
        batch.values = _aligned([(c.values, 1, c.offset) for c in caches], length, size)
        batch.offset = batch.offset + length
        batch._idx = length
        return batch

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[PackedKV, PackedKV]:
        """Take in keys and values [B, H, T, D], the same T for all rows; views of all so far."""
        self._write(keys, values, self._idx)
        self._idx += keys.shape[2]
        self.offset = self.offset + keys.shape[2]
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[PackedKV, PackedKV]:
        return self._views(self._idx)

    @property
    def state(self) -> tuple[Arrays, Arrays, mx.array, mx.array, int]:
        return self.keys, self.values, self.offset, self.left_padding, self._idx

    def size(self) -> int:
        return self._idx

    def trim(self, n: int) -> int:
        """Forget the last n tokens of every row; how many those were."""
        n = min(self._idx, n)
        self._idx -= n
        self.offset = self.offset - n
        return n

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        mask: mx.array = create_causal_mask(
            N, offset=self._idx, left_padding=self.left_padding, window_size=window_size
        )
        return mask

    def prepare(
        self,
        *,
        left_padding: list[int] | None = None,
        lengths: list[int] | None = None,
        right_padding: list[int] | None = None,
    ) -> None:
        """Say how the tokens that come next are padded. `finalize` moves padding on the right to
        the left. `lengths` are for caches of other kinds.

        Raises:
            ValueError: left padding, and there are tokens already.
        """
        if left_padding is not None:
            if not self.empty():
                raise ValueError("left padding can only be added to an empty batch")
            padding = mx.array(left_padding)
            self.left_padding = self.left_padding + padding
            self.offset = self.offset - padding
        if right_padding is not None and max(right_padding) > 0:
            self._right_padding = mx.array(right_padding)

    def finalize(self) -> None:
        padding = self._right_padding
        if padding is None:
            return
        shifts = padding[:, None]
        self._change(lambda array: dynamic_roll(array, shifts, axis=2))
        self.offset = self.offset - padding
        self.left_padding = self.left_padding + padding
        self._right_padding = None

    def filter(self, batch_indices: list[int]) -> None:
        """Keep these rows, in this order, and no more padding than they need. Copies."""
        rows = mx.array(batch_indices)
        self.offset = self.offset[rows]
        self.left_padding = self.left_padding[rows]
        spare = min(_numbers(self.left_padding))
        self._change(lambda array: array[rows][..., spare:, :])
        self.left_padding = self.left_padding - spare
        self._idx -= spare

    def extend(self, other: "BatchPackedKVCache") -> None:
        """Append the rows of another batch of the same class and scheme. Copies both."""
        both = (self, other)
        stop = max(cache._idx for cache in both)
        size = _with_spare(stop, self.step)
        rows = [cache.offset.shape[0] for cache in both]
        ends = [cache._idx for cache in both]
        keys, values = [c.keys for c in both], [c.values for c in both]
        self.keys = _aligned(list(zip(keys, rows, ends, strict=True)), stop, size)
        self.values = _aligned(list(zip(values, rows, ends, strict=True)), stop, size)
        self.left_padding = mx.concatenate([c.left_padding + (stop - c._idx) for c in both])
        self.offset = mx.concatenate([c.offset for c in both])
        self._idx = stop

    def extract(self, index: int) -> PackedKVCache:
        """One row as a sequence of its own. Copies."""
        first = _numbers(self.left_padding)[index]
        row = slice(index, index + 1)
        alone = self.solo(self.scheme)
        alone.keys = tuple(mx.contiguous(a[row, :, first : self._idx]) for a in self.keys)
        alone.values = tuple(mx.contiguous(a[row, :, first : self._idx]) for a in self.values)
        alone.offset = self._idx - first
        return alone


def _written(buffers: Arrays, new: Arrays, at: int, step: int) -> Arrays:
    """`new` put at place `at` of the buffers, which grow when it does not fit."""
    stop = at + new[0].shape[-2]
    if not buffers or stop > buffers[0].shape[-2]:
        more = -(-new[0].shape[-2] // step) * step
        spare = tuple(mx.zeros((*a.shape[:-2], more, a.shape[-1]), a.dtype) for a in new)
        grown = zip(buffers, spare, strict=bool(buffers))
        buffers = tuple(mx.concatenate([b[..., :at, :], s], axis=-2) for b, s in grown) or spare
    for buffer, array in zip(buffers, new, strict=True):
        buffer[..., at:stop, :] = array
    return buffers


def _aligned(members: Sequence[tuple[Arrays, int, int]], stop: int, size: int) -> Arrays:
    """The rows of all members, given as (arrays, rows, tokens), in buffers of `size` places where
    their tokens end at `stop`. Each is copied once. () when none has arrays."""
    total = sum(rows for _, rows, _ in members)
    like = next((arrays for arrays, _, _ in members if arrays), ())
    buffers = tuple(mx.zeros((total, a.shape[1], size, a.shape[3]), a.dtype) for a in like)
    first = 0
    for arrays, rows, tokens in members:
        for buffer, array in zip(buffers, arrays, strict=bool(arrays)):
            buffer[first : first + rows, :, stop - tokens : stop] = array[..., :tokens, :]
        first += rows
    return buffers


def _with_spare(length: int, step: int) -> int:
    """Room for `length` tokens and at least one more, so that the next step copies nothing."""
    return (length // step + 1) * step


def _numbers(array: mx.array) -> list[int]:
    numbers: Any = array.tolist()
    return list(numbers)
