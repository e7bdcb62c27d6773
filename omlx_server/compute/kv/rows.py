"""The batch form of our full-attention caches: rows of their own lengths, in groups."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import mlx.core as mx

from omlx_server.compute.kv.row_groups import GroupPart, RowGroup, length_classes
from omlx_server.compute.kv.schemes.base import Arrays, Mask, Scheme, views
from omlx_server.compute.kv.spans import Strip, join_pieces


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The causal masks of rows of different lengths, for all layers."""

    masks: dict[tuple[int, tuple[int, ...]], mx.array] = field(default_factory=dict)

    def of(self, count: int, lengths: tuple[int, ...]) -> mx.array | str | None:
        """Return None or "causal" for rows of one length, else bool [R, 1, count, longest]."""
        longest = max(lengths)
        if min(lengths) == longest:
            return "causal" if count > 1 else None
        key = count, lengths
        if key not in self.masks:
            seen = mx.array(lengths)[:, None] - count + 1 + mx.arange(count)
            self.masks[key] = mx.arange(longest) < seen[:, None, :, None]
        return self.masks[key]


@dataclass(frozen=True, slots=True, eq=False)
class RowsKV:
    """Keys or values of a batch, for our attention."""

    groups: Sequence[tuple[RowGroup, Arrays]]
    scheme: Scheme
    dtype: mx.Dtype

    def astype(self, dtype: mx.Dtype) -> "RowsKV":
        return self


class RowsKVCache:
    """A batch's cache of one layer, with the interface of mlx-lm's BatchKVCache."""

    def __init__(self, scheme: Scheme, parts: Sequence[GroupPart]) -> None:
        self.scheme = scheme
        self._groups = [
            RowGroup(rows, [parts[row] for row in rows]) for rows in _rows_of_groups(parts)
        ]
        self._padding: Sequence[int] = ()
        self._dtype: mx.Dtype | None = None

    @property
    def lengths(self) -> list[int]:
        """Each row's number of tokens, spans included."""
        by_row = {
            row: length + (spans[-1].stop if spans else 0)
            for group in self._groups
            for row, length, spans in zip(group.rows, group.lengths, group.spans, strict=True)
        }
        return [by_row[row] for row in range(len(by_row))]

    @property
    def offset(self) -> mx.array:
        """i32 [B]: each row's next position, not to be modified."""
        return shared_array(tuple(self.lengths))

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self._groups)

    @property
    def keys(self) -> Arrays:
        return tuple(array for group in self._groups for array in group.keys)

    @keys.setter
    def keys(self, keys: Sequence[mx.array]) -> None:
        """Pipelined models make the keys depend on what they send on."""
        arrays = iter(keys)
        for group in self._groups:
            group.keys = tuple(islice(arrays, len(group.keys)))

    @property
    def state(self) -> list[tuple[Arrays, Arrays]]:
        return [(group.keys, group.values) for group in self._groups]

    def size(self) -> int:
        return max(self.lengths)

    def empty(self) -> bool:
        return not any(group.keys or group.has_spans for group in self._groups)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        for group in self._groups:
            group.forget_last([n] * len(group.rows))
        return n

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> RowMasks | Mask:
        """Raises ValueError for a model that needs an array."""
        if return_array or window_size is not None:
            raise ValueError("its attention needs one mask for rows of all lengths")
        return RowMasks()

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Store keys and values [B, H, T, D] of new tokens."""
        self._store(keys, values)
        return self.keys_and_values()

    def _store(self, keys: mx.array, values: mx.array) -> None:
        new_keys, new_values = self.scheme.quantize(keys, values)
        for group in self._groups:
            group.write(pick_rows(new_keys, group.rows), pick_rows(new_values, group.rows))
        self._dtype = keys.dtype

    def keys_and_values(self) -> tuple[Any, Any]:
        return self.stored()

    def stored(self) -> tuple[RowsKV, RowsKV]:
        assert self._dtype is not None, "nothing was written"
        keys = [(group, views(group.keys, 0, max(group.lengths))) for group in self._groups]
        values = [(group, views(group.values, 0, max(group.lengths))) for group in self._groups]
        return RowsKV(keys, self.scheme, self._dtype), RowsKV(values, self.scheme, self._dtype)

    def prepare(
        self, *, lengths: Sequence[int] | None = None, right_padding: Sequence[int] | None = None
    ) -> None:
        """Announce that each row's next tokens end in padding, which `finalize` forgets."""
        self._padding = right_padding or ()

    def finalize(self) -> None:
        if self._padding:
            self.forget_last(self._padding)
        self._padding = ()

    def forget_last(self, counts: Sequence[int]) -> None:
        for group in self._groups:
            group.forget_last([counts[row] for row in group.rows])

    def filter(self, batch_indices: Sequence[int]) -> None:
        new_number = {row: number for number, row in enumerate(batch_indices)}
        staying = (group.without_rows(lambda row: row not in new_number) for group in self._groups)
        self._groups = [group for group in staying if group is not None]
        for group in self._groups:
            group.rows = tuple(new_number[row] for row in group.rows)

    def extend(self, other: "RowsKVCache") -> None:
        """Append rows, each group to the first that it fits."""
        count = sum(len(group.rows) for group in self._groups)
        for theirs in other._groups:
            rows = [row + count for row in theirs.rows]
            for number, mine in enumerate(self._groups):
                if mine.has_spans == theirs.has_spans and all(map(mine.fits, theirs.lengths)):
                    self._groups[number] = RowGroup([*mine.rows, *rows], [mine.part, theirs.part])
                    break
            else:
                self._groups.append(RowGroup(rows, [theirs.part]))

    def row(self, index: int) -> Arrays:
        """Return keys, then values [1, H, tokens, F]: views, or copies if there are spans."""
        group, place = self._group_of(index)
        length = group.lengths[place]
        tail = views(group.keys, 0, length, place), views(group.values, 0, length, place)
        keys, values = join_pieces([*(span.arrays() for span in group.spans[place]), tail])
        return *keys, *values

    def strip(self, index: int) -> Strip:
        group, place = self._group_of(index)
        return group.strip(place)

    def hand_over(self) -> None:
        for group in self._groups:
            group.hand_over()

    def lose(self) -> None:
        for group in self._groups:
            group.lose()

    def lost_rows(self) -> list[int]:
        return [
            row
            for group in self._groups
            for row, spans in zip(group.rows, group.spans, strict=True)
            if any(span.segment.run.is_lost for span in spans)
        ]

    def _group_of(self, index: int) -> tuple[RowGroup, int]:
        group = next(group for group in self._groups if index in group.rows)
        return group, group.rows.index(index)


def _rows_of_groups(parts: Sequence[GroupPart]) -> list[list[int]]:
    groups = []
    for with_spans in (False, True):
        rows = [row for row, part in enumerate(parts) if bool(part.spans[0]) is with_spans]
        for numbers in length_classes([parts[row].lengths[0] for row in rows]):
            groups.append([rows[number] for number in numbers])
    return groups


@lru_cache(maxsize=16)
def shared_array(numbers: tuple[int, ...]) -> mx.array:
    """Return an evaluated i32 [N] for all layers, not to be modified."""
    return mx.array(numbers, dtype=mx.int32)


def pick_rows(arrays: Arrays, rows: tuple[int, ...]) -> Arrays:
    if rows == tuple(range(len(arrays[0]))):
        return arrays
    places = shared_array(rows)
    return tuple(array[places] for array in arrays)
