"""Groups of rows of about one length, which share buffers and one attention."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import ReferenceType, ref

import mlx.core as mx
import numpy as np

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes.base import Arrays
from omlx_server.compute.kv.spans import Buffers, Spans, Strip, end_of, referent, spans_before
from omlx_server.core.memory.kv import longest_in_group, places, places_with_room


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Rows' own tokens behind their `spans`: buffers [R, H, C, F] with lengths[i] tokens of row i,
    () before the first token. Rows that enter a group bring `strips`."""

    keys: Arrays
    values: Arrays
    lengths: tuple[int, ...]
    spans: tuple[Spans, ...]
    strips: tuple[Strip | None, ...] = ()


class RowGroup:
    """Rows with lengths[i] own tokens in common buffers."""

    def __init__(self, rows: Sequence[int], parts: Sequence[GroupPart]) -> None:
        self.rows = tuple(rows)
        self.lengths = tuple(length for part in parts for length in part.lengths)
        self.spans = tuple(spans for part in parts for spans in part.spans)
        self._strips: list[ReferenceType[Strip] | None] = [None] * len(self.rows)
        for place, strip in enumerate(strip for part in parts for strip in part.strips):
            if strip is not None:
                strip.move(self, place)
                self._strips[place] = ref(strip)
        self.keys = _common_buffers([part.keys for part in parts], parts, max(self.lengths))
        self.values = _common_buffers([part.values for part in parts], parts, max(self.lengths))

    @property
    def part(self) -> GroupPart:
        strips = tuple(map(self._living_strip, range(len(self.rows))))
        return GroupPart(self.keys, self.values, self.lengths, self.spans, strips)

    @property
    def has_spans(self) -> bool:
        return any(self.spans)

    def first(self, place: int) -> int:
        return end_of(self.spans[place])

    def strip(self, place: int) -> Strip:
        strip = self._living_strip(place)
        if strip is None:
            strip = Strip(self, place, self.first(place))
            self._strips[place] = ref(strip)
        return strip

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))

    def write(self, keys: Arrays, values: Arrays) -> None:
        """Append tokens [R, H, T, F]."""
        count = keys[0].shape[2]
        self.keys = append_tokens(self.keys, keys, self.lengths)
        self.values = append_tokens(self.values, values, self.lengths)
        self.lengths = tuple([length + count for length in self.lengths])

    def forget_last(self, counts: Sequence[int]) -> None:
        """Forget row i's last counts[i] tokens. Copies only what a block refers to."""
        lengths, spans = list[int](), list[Spans]()
        for place, count in enumerate(counts):
            kept = max(0, end_of(self.spans[place]) + self.lengths[place] - count)
            strip = self._living_strip(place)
            if strip is not None and strip.has_tokens_after(kept):
                self._move_out(place, strip)
            spans.append(spans_before(self.spans[place], kept))
            lengths.append(kept - end_of(spans[-1]))
        self.lengths, self.spans = tuple(lengths), tuple(spans)

    def fits(self, length: int) -> bool:
        shortest, longest = min(self.lengths), max(self.lengths)
        return max(length, longest) <= longest_in_group(min(length, shortest))

    def without_rows(self, is_gone: Callable[[int], bool]) -> "RowGroup | None":
        """Return the group without rows that are gone, None if none stays."""
        staying = [place for place, row in enumerate(self.rows) if not is_gone(row)]
        if len(staying) == len(self.rows):
            return self
        for place, strip in enumerate(map(self._living_strip, range(len(self.rows)))):
            if strip is not None and place not in staying:
                self._move_out(place, strip)
        if not staying:
            return None
        lengths = tuple(self.lengths[place] for place in staying)
        indices, room = mx.array(staying), places_with_room(max(lengths))
        keys, values = (
            tuple(array[:, :, :room][indices] for array in arrays)
            for arrays in (self.keys, self.values)
        )
        spans = tuple(self.spans[place] for place in staying)
        strips = tuple(self._living_strip(place) for place in staying)
        rows = [self.rows[place] for place in staying]
        return RowGroup(rows, [GroupPart(keys, values, lengths, spans, strips)])

    def hand_over(self) -> None:
        self.without_rows(lambda row: True)

    def lose(self) -> None:
        for strip in map(self._living_strip, range(len(self.rows))):
            if strip is not None:
                strip.lose()

    def _living_strip(self, place: int) -> Strip | None:
        strip = referent(self._strips[place])
        if strip is None or strip.holder is not self or strip.place != place:
            return None
        return strip

    def _move_out(self, place: int, strip: Strip) -> None:
        self._strips[place] = None
        start, stop = strip.extent
        if len(self.rows) == 1:
            keys, values = (tuple(map(mx.array, arrays)) for arrays in (self.keys, self.values))
        else:
            keys, values = (tuple(map(mx.contiguous, side)) for side in strip.arrays(start, stop))
            device.launch(keys, values)
            strip.first = start
        strip.move(Buffers(keys, values))


def length_classes(lengths: Sequence[int]) -> list[list[int]]:
    classes: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if classes and lengths[row] <= longest_in_group(lengths[classes[-1][0]]):
            classes[-1].append(row)
        else:
            classes.append([row])
    return [sorted(rows) for rows in classes]


def _enlarge(buffers: Arrays, new: Arrays, tokens: int) -> Arrays:
    added = places(new[0].shape[2])
    unused = tuple(mx.zeros((*a.shape[:2], added, a.shape[3]), a.dtype) for a in new)
    if not buffers:
        return unused
    pairs = zip(buffers, unused, strict=True)
    return tuple(mx.concatenate([buffer[:, :, :tokens], end], axis=2) for buffer, end in pairs)


@lru_cache(maxsize=16)
def _indices_to_append_at(lengths: tuple[int, ...], heads: int, count: int) -> tuple[mx.array, ...]:
    """Return the indices (row, head, token) of `count` places after each row's tokens."""
    rows = np.arange(len(lengths), dtype=np.uint32)[:, None, None]
    all_heads = np.arange(heads, dtype=np.uint32)[:, None]
    tokens = np.array(lengths, dtype=np.uint32)[:, None, None] + np.arange(count, dtype=np.uint32)
    return mx.array(rows), mx.array(all_heads), mx.array(tokens)


def append_tokens(buffers: Arrays, new: Arrays, lengths: Sequence[int]) -> Arrays:
    """Append `new` tokens [R, H, T, F] to each row, in place or in larger buffers."""
    count, longest = new[0].shape[2], max(lengths)
    if not buffers or longest + count > buffers[0].shape[2]:
        buffers = _enlarge(buffers, new, longest)
    for buffer, array in zip(buffers, new, strict=True):
        if min(lengths) == longest:
            buffer[:, :, longest : longest + count] = array
        else:
            buffer[_indices_to_append_at(tuple(lengths), array.shape[1], count)] = array
    return buffers


def _common_buffers(sides: Sequence[Arrays], parts: Sequence[GroupPart], longest: int) -> Arrays:
    """Return buffers of all parts' rows. `sides` are the keys of each part, or the values."""
    if len(sides) == 1:
        return tuple(mx.contiguous(array) for array in sides[0])
    like = next((arrays for arrays in sides if arrays), ())
    rows, room = sum(len(part.lengths) for part in parts), places_with_room(longest)
    buffers = tuple(mx.zeros((rows, a.shape[1], room, a.shape[3]), a.dtype) for a in like)
    start = 0
    for arrays, part in zip(sides, parts, strict=True):
        stop, tokens = start + len(part.lengths), max(part.lengths)
        for buffer, array in zip(buffers, arrays, strict=bool(arrays)):
            buffer[start:stop, :, :tokens] = array[:, :, :tokens]
        start = stop
    return buffers
