"""The batch form of our caches of full attention: rows of sequences, each of its own length.

Rows of about one length are in one group (compute/kv/row_groups.py): what a row takes follows from
its own tokens, not from the longest row's, and who joins or leaves moves no other group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from omlx_server.compute.kv.base import Arrays, PackedKV, Scheme
from omlx_server.compute.kv.row_groups import Group, Part, length_classes


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What `RowsKVCache.make_mask` gives a model to hand on: each of T new tokens sees its row's
    tokens up to itself. The masks of a forward are the same in all layers, and made once."""

    made: dict[tuple[int, tuple[int, ...]], mx.array] = field(default_factory=dict)

    def of(self, count: int, lengths: tuple[int, ...]) -> mx.array | str | None:
        """For rows of so many tokens, the last `count` of which are new: None or "causal" where
        they are equally many, else bool [R, 1, count, longest]."""
        longest = max(lengths)
        if min(lengths) == longest:
            return "causal" if count > 1 else None
        key = count, lengths
        if key not in self.made:
            seen = mx.array(lengths)[:, None] - count + 1 + mx.arange(count)
            self.made[key] = mx.arange(longest) < seen[:, None, :, None]
        return self.made[key]


@dataclass(frozen=True, slots=True, eq=False)
class RowsKV:
    """Keys or values of a batch as a model gets them: those of each group, as `PackedKV`."""

    groups: Sequence[tuple[Group, PackedKV]]
    dtype: mx.Dtype

    def astype(self, dtype: mx.Dtype) -> "RowsKV":
        """As `PackedKV.astype`."""
        return self


class RowsKVCache:
    """Row i of the batch has `lengths[i]` tokens. The likeness of mlx-lm's BatchKVCache."""

    def __init__(self, scheme: Scheme, parts: Sequence[Part]) -> None:
        """Each part is one row."""
        self.scheme = scheme
        lengths = [length for part in parts for length in part.lengths]
        self._groups = [
            Group(rows, [parts[row] for row in rows]) for rows in length_classes(lengths)
        ]
        self._padding: Sequence[int] = ()
        self._dtype: mx.Dtype | None = None

    @property
    def lengths(self) -> list[int]:
        by_row = {row: n for g in self._groups for row, n in zip(g.rows, g.lengths, strict=True)}
        return [by_row[row] for row in range(len(by_row))]

    @property
    def offset(self) -> mx.array:
        """i32 [B]: the position of each row's next token."""
        return mx.array(self.lengths, dtype=mx.int32)

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self._groups)

    @property
    def state(self) -> list[tuple[Arrays, Arrays]]:
        return [(group.keys, group.values) for group in self._groups]

    def size(self) -> int:
        return max(self.lengths)

    def empty(self) -> bool:
        return not any(group.keys for group in self._groups)

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Forget the last n tokens of every row, or all of a row that has fewer."""
        for group in self._groups:
            group.cut_back([n] * len(group.rows))
        return n

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> RowMasks:
        """Raises ValueError for a model that must have an array: no one fits all groups."""
        if return_array or window_size is not None:
            raise ValueError("its attention needs one mask for rows of all lengths")
        return RowMasks()

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[RowsKV, RowsKV]:
        """Take in keys and values [B, H, T, D], the same T for all rows; all tokens so far."""
        new_keys, new_values = self.scheme.quantize_keys(keys), self.scheme.quantize_values(values)
        for group in self._groups:
            group.write(picked(new_keys, group.rows), picked(new_values, group.rows))
        self._dtype = keys.dtype
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[RowsKV, RowsKV]:
        """As `PackedKVCache.keys_and_values`."""
        dtype = self._dtype
        assert dtype is not None, "nothing was written"
        return (
            RowsKV([(g, self._handed(g, g.keys, dtype)) for g in self._groups], dtype),
            RowsKV([(g, self._handed(g, g.values, dtype)) for g in self._groups], dtype),
        )

    def _handed(self, group: Group, arrays: Arrays, dtype: mx.Dtype) -> PackedKV:
        stop = max(group.lengths)
        return PackedKV(tuple(array[:, :, :stop] for array in arrays), self.scheme, dtype)

    def prepare(
        self, *, lengths: Sequence[int] | None = None, right_padding: Sequence[int] | None = None
    ) -> None:
        """The tokens that come next end in so much padding. `finalize` forgets it. `lengths` are
        for caches of other kinds."""
        self._padding = right_padding or ()

    def finalize(self) -> None:
        if self._padding:
            for group in self._groups:
                group.cut_back([self._padding[row] for row in group.rows])
        self._padding = ()

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep these rows, in this order. Copies groups that lose some of their rows."""
        now = {row: number for number, row in enumerate(batch_indices)}
        staying = (group.without(lambda row: row not in now) for group in self._groups)
        self._groups = [group for group in staying if group is not None]
        self._renumber(now)

    def extend(self, other: "RowsKVCache") -> None:
        """Append the rows of another batch of the same scheme. Copies them and the groups that they
        come into; a group of a length class that is not here is taken as it is."""
        count = sum(len(group.rows) for group in self._groups)
        for theirs in other._groups:
            rows = [row + count for row in theirs.rows]
            fitting = (
                number
                for number, mine in enumerate(self._groups)
                if all(map(mine.fits, theirs.lengths))
            )
            number = next(fitting, None)
            if number is None:
                self._groups.append(Group(rows, [theirs.part]))
            else:
                mine = self._groups[number]
                self._groups[number] = Group([*mine.rows, *rows], [mine.part, theirs.part])

    def row(self, index: int) -> Arrays:
        """Views [1, H, tokens, F] of what a row has stored: keys, then values."""
        group = next(group for group in self._groups if index in group.rows)
        place = group.rows.index(index)
        stop = group.lengths[place]
        return tuple(a[place : place + 1, :, :stop] for a in (*group.keys, *group.values))

    def _renumber(self, now: Mapping[int, int]) -> None:
        for group in self._groups:
            group.rows = tuple(now[row] for row in group.rows)


def picked(arrays: Arrays, rows: tuple[int, ...]) -> Arrays:
    """These rows of arrays [B, ...]."""
    if rows == tuple(range(len(arrays[0]))):
        return arrays
    places = mx.array(rows)
    return tuple(array[places] for array in arrays)
