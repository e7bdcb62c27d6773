"""Groups of rows of about one length, which share buffers, so that one attention serves them all.

Each row begins at place 0 of its buffers and has places of its own to grow into:

    buffers [R, H, C, F]   row i   tokens 0 .. lengths[i] - 1 | unused
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from omlx_server.compute.kv.base import Arrays
from omlx_server.core.memory.kv import places, places_with_room, reach


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that go into a group: their buffers [R, H, C, F], or () before the first token, and how
    many tokens each row has."""

    keys: Arrays
    values: Arrays
    lengths: tuple[int, ...]


class Group:
    """Rows of a batch in common buffers. `rows` has the number in the batch of each row of the
    buffers. Nobody else should hold the buffers, or they are copied when tokens are written."""

    def __init__(self, rows: Sequence[int], parts: Sequence[Part]) -> None:
        self.rows = tuple(rows)
        self.lengths = tuple(length for part in parts for length in part.lengths)
        self.keys = _together([part.keys for part in parts], parts, max(self.lengths))
        self.values = _together([part.values for part in parts], parts, max(self.lengths))

    @property
    def part(self) -> Part:
        return Part(self.keys, self.values, self.lengths)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.keys, *self.values))

    def write(self, keys: Arrays, values: Arrays) -> None:
        """Put T new tokens [R, H, T, F] behind each row's own tokens."""
        count = keys[0].shape[2]
        indices = _indices(self.lengths, count)
        self.keys = written(self.keys, keys, self.lengths, indices)
        self.values = written(self.values, values, self.lengths, indices)
        self.lengths = tuple(length + count for length in self.lengths)

    def cut_back(self, counts: Sequence[int]) -> None:
        """Forget the last counts[i] tokens of row i, or all if it has fewer. Copies nothing."""
        pairs = zip(self.lengths, counts, strict=True)
        self.lengths = tuple(max(0, length - count) for length, count in pairs)

    def fits(self, length: int) -> bool:
        """Whether a row of `length` tokens may be in this group."""
        shortest, longest = min(self.lengths), max(self.lengths)
        return max(length, longest) <= reach(min(length, shortest))

    def without(self, gone: Callable[[int], bool]) -> "Group | None":
        """The group without the rows of the batch that are `gone`: itself if it has none of them,
        None if it has no other. Copies the rows that stay, with no more places than they need."""
        kept = [place for place, row in enumerate(self.rows) if not gone(row)]
        if len(kept) == len(self.rows):
            return self
        if not kept:
            return None
        lengths = tuple(self.lengths[place] for place in kept)
        staying, room = mx.array(kept), places_with_room(max(lengths))
        keys, values = (
            tuple(array[:, :, :room][staying] for array in arrays)
            for arrays in (self.keys, self.values)
        )
        return Group([self.rows[place] for place in kept], [Part(keys, values, lengths)])


def length_classes(lengths: Sequence[int]) -> list[list[int]]:
    """Sorts rows with these lengths, in tokens, into lists of rows that can be in one group."""
    classes: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if classes and lengths[row] <= reach(lengths[classes[-1][0]]):
            classes[-1].append(row)
        else:
            classes.append([row])
    return [sorted(rows) for rows in classes]


def _grown(buffers: Arrays, new: Arrays, held: int) -> Arrays:
    """Copies of the buffers with zeroed places for the tokens of `new` behind the first `held`."""
    more = places(new[0].shape[2])
    spare = tuple(mx.zeros((*a.shape[:2], more, a.shape[3]), a.dtype) for a in new)
    if not buffers:
        return spare
    pairs = zip(buffers, spare, strict=True)
    return tuple(mx.concatenate([buffer[:, :, :held], s], axis=2) for buffer, s in pairs)


def _indices(lengths: tuple[int, ...], count: int) -> tuple[mx.array, mx.array] | None:
    """Where `count` new tokens of each row go: rows [R, 1] and places [R, count] of the buffers.
    None for rows of one length, whose new tokens go into one slice."""
    if min(lengths) == max(lengths):
        return None
    return mx.arange(len(lengths))[:, None], mx.array(lengths)[:, None] + mx.arange(count)


def written(
    buffers: Arrays,
    new: Arrays,
    lengths: Sequence[int],
    indices: tuple[mx.array, mx.array] | None = None,
) -> Arrays:
    """The buffers with `new` tokens [R, H, T, F] behind those of each row. They are modified, or
    replaced by larger ones where these do not fit. `indices` say where rows of different lengths
    get theirs."""
    count, longest = new[0].shape[2], max(lengths)
    if not buffers or longest + count > buffers[0].shape[2]:
        buffers = _grown(buffers, new, longest)
    for buffer, array in zip(buffers, new, strict=True):
        if indices is None:
            buffer[:, :, longest : longest + count] = array
        else:
            rows, at = indices
            buffer[rows, :, at] = array.swapaxes(1, 2)
    return buffers


def _together(members: Sequence[Arrays], parts: Sequence[Part], longest: int) -> Arrays:
    """The rows of all parts in one set of buffers, into which each row is copied once. The buffers
    of a single part are not copied: their former holder should let go of them."""
    if len(members) == 1:
        return tuple(mx.contiguous(array) for array in members[0])
    like = next((arrays for arrays in members if arrays), ())
    rows, room = sum(len(part.lengths) for part in parts), places_with_room(longest)
    buffers = tuple(mx.zeros((rows, a.shape[1], room, a.shape[3]), a.dtype) for a in like)
    first = 0
    for arrays, part in zip(members, parts, strict=True):
        last, held = first + len(part.lengths), max(part.lengths)
        for buffer, array in zip(buffers, arrays, strict=bool(arrays)):
            buffer[first:last, :, :held] = array[:, :, :held]
        first = last
    return buffers
