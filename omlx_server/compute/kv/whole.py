"""Our caches for models that compute with keys and values by themselves, past MLX's own function
(plamo, gemma2): these get plain arrays of all tokens.

What is held is the same, by reference. Where rows have different lengths or refer to spans, a copy
of all rows is made for one layer at a time, in which each row begins at place 0.
"""

from collections.abc import Callable, Iterator
from typing import ClassVar

import mlx.core as mx

from omlx_server.compute.kv.caches import PackedKVCache
from omlx_server.compute.kv.row_groups import RowGroup
from omlx_server.compute.kv.rows import RowsKVCache
from omlx_server.compute.kv.schemes.base import Arrays, Mask
from omlx_server.compute.kv.spans import Span


class WholeRowsKVCache(RowsKVCache):
    """The batch form of `WholeKVCache`."""

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        """The mask of N new tokens of each row: None or "causal" where that says it all, else bool
        [B, 1, N, longest]. A query sees the last `window_size` tokens, itself included."""
        lengths = self.lengths
        longest = max(lengths)
        if min(lengths) == longest and window_size is None and not (return_array and N > 1):
            return "causal" if N > 1 else None
        queries = (mx.array(lengths)[:, None] + mx.arange(N))[:, None, :, None]
        keys = mx.arange(longest + N)
        seen = keys <= queries
        return seen & (keys > queries - window_size) if window_size is not None else seen

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Keys and values [B, H, longest, D] of all tokens so far."""
        return (
            self._rows(lambda group: group.keys, lambda span: span.arrays()[0]),
            self._rows(lambda group: group.values, lambda span: span.arrays()[1]),
        )

    def _rows(self, own: Callable[[RowGroup], Arrays], of: Callable[[Span], Arrays]) -> mx.array:
        """All rows in one array: that of the only group, or a copy."""
        lengths = self.lengths
        count, longest = len(lengths), max(lengths)
        [array] = own(self._groups[0])
        if self._is_one_array:
            return array[:, :, :longest]
        rows = mx.zeros((count, array.shape[1], longest, array.shape[3]), array.dtype)
        for row, start, piece in self._pieces(own, of):
            rows[row, :, start : start + piece.shape[2]] = piece[0]
        return rows

    @property
    def _is_one_array(self) -> bool:
        """Whether all rows are in one array, in order and whole."""
        [group, *others] = self._groups
        return not (others or group.has_spans) and group.rows == tuple(range(len(group.rows)))

    def _pieces(
        self, own: Callable[[RowGroup], Arrays], of: Callable[[Span], Arrays]
    ) -> Iterator[tuple[int, int, mx.array]]:
        """A row, a position, and an array [1, H, T, D] of its tokens from there on."""
        for group in self._groups:
            [array] = own(group)
            for place, row in enumerate(group.rows):
                for span in group.spans[place]:
                    yield row, span.start, of(span)[0]
                tokens = array[place : place + 1, :, : group.lengths[place]]
                yield row, group.first(place), tokens


class WholeKVCache(PackedKVCache):
    """One sequence, whose model gets arrays [1, H, T, D] of all tokens so far."""

    batch_form: ClassVar[type[RowsKVCache]] = WholeRowsKVCache

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """Views, unless spans have to be joined."""
        keys, values = self.row(0)
        return keys, values
