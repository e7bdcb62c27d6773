"""Caches for models that compute attention themselves (plamo, gemma2) and need plain arrays.

Where rows differ in length or have spans, one layer at a time is copied into one array.
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
    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        """Return None, "causal" or bool [B, 1, N, longest]. A query sees `window_size` tokens,
        itself included."""
        lengths = self.lengths
        longest = max(lengths)
        if min(lengths) == longest and window_size is None and not (return_array and N > 1):
            return "causal" if N > 1 else None
        queries = (mx.array(lengths)[:, None] + mx.arange(N))[:, None, :, None]
        keys = mx.arange(longest + N)
        seen = keys <= queries
        return seen & (keys > queries - window_size) if window_size is not None else seen

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        return (
            self._rows(lambda group: group.keys, lambda span: span.arrays()[0]),
            self._rows(lambda group: group.values, lambda span: span.arrays()[1]),
        )

    def _rows(self, own: Callable[[RowGroup], Arrays], of: Callable[[Span], Arrays]) -> mx.array:
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
        [group, *others] = self._groups
        return not (others or group.has_spans) and group.rows == tuple(range(len(group.rows)))

    def _pieces(
        self, own: Callable[[RowGroup], Arrays], of: Callable[[Span], Arrays]
    ) -> Iterator[tuple[int, int, mx.array]]:
        """Yield a row, a position, and an array [1, H, T, D] of its tokens from there on."""
        for group in self._groups:
            [array] = own(group)
            for place, row in enumerate(group.rows):
                for span in group.spans[place]:
                    yield row, span.start, of(span)[0]
                tokens = array[place : place + 1, :, : group.lengths[place]]
                yield row, group.first(place), tokens


class WholeKVCache(PackedKVCache):
    batch_form: ClassVar[type[RowsKVCache]] = WholeRowsKVCache

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        keys, values = self.row(0)
        return keys, values
