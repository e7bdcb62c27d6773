"""The interface of codecs.

A part is what a block or checkpoint holds of one cache: a tuple of arrays. DELTA and WINDOW parts
have the token axis at -2. A row of mlx-lm's batches is found from its end:

    index    0 ... | padding | tokens 0 .. length-1 | unused
                                         newest = position of token length-1 in the array
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.spans import Spans, Strip
from omlx_server.core.blocks.block import LayerKind
from omlx_server.core.memory.kv import LayerKv, places_with_room

# mlx-lm's cache classes share no typed base.
Cache = Any

Arrays = tuple[mx.array, ...]


class CannotFill(Exception):
    """Only a real prefill can fill this cache."""


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One sequence in a cache: its row and its number of tokens."""

    index: int
    length: int


class Codec:
    """Handles the cache classes in `classes`, solo and batch forms. Stateless. This base class
    serves unknown ones, of which nothing is stored."""

    classes: tuple[type, ...] = ()
    kind: LayerKind

    stores_decoded = True  # a decode leaves the caches as a prefill would, so tokens become blocks
    groupable = True  # chunks of several prompts may run in one forward
    # A recurrent state: rows can't be padded on the right, unless a test shows it
    # (compute/row_ends.py), and a row without a state can't be merged with others.
    recurrent = False
    by_reference = False  # caches of ours: blocks and rows can refer to their buffers
    takes_out_drafts = False  # has `take_out_drafts`
    takes_out_by_row = False  # cheaply takes different numbers of drafts out of different rows
    undoes_by_row = True  # `prepare_undo` puts some rows back while others go on

    def batchable(self, fresh: Cache) -> bool:
        return False

    def begin_decode(self, cache: Cache) -> None: ...
    def finalize(self, cache: Cache) -> None:
        cache.finalize()

    def begin_verify(self, cache: Cache, lengths: Sequence[int], width: int) -> None:
        """Prepare for a decode of lengths[i] tokens of row i, padded to `width`."""

    def end_verify(self, cache: Cache) -> None: ...
    def take_out_drafts(self, cache: Cache, counts: Sequence[int]) -> None:
        """Take out row i's last counts[i] tokens, wrong drafts or padding. A ring needs
        them to be of the newest forward, of several tokens."""
        raise NotImplementedError

    def prepare_undo(self, cache: Cache) -> Callable[[Sequence[int]], None] | None:
        """Return a function that undoes the next forward, if possible: row i forgets its last
        counts[i] tokens, all or its padding. If all rows forget all, it undoes several."""
        return (
            (lambda counts: self.take_out_drafts(cache, counts)) if self.takes_out_drafts else None
        )

    def reusable(self, fresh: Cache) -> bool:
        """Return whether parts hold all of this solo cache."""
        return type(fresh) in self.classes

    def describe(self, fresh: Cache) -> str:
        """Return the format of the parts, for the namespace of blocks."""
        raise NotImplementedError

    def window(self, fresh: Cache) -> int:
        """Return the number of tokens that a WINDOW layer sees."""
        return 0

    def cut(self, cache: Cache, row: CacheRow, start: int, stop: int) -> Arrays:
        """Return the part for tokens [start, stop) of a row, or a CHECKPOINT cache's whole
        state: mostly views. Raises IndexError when a WINDOW cache has dropped them."""
        raise NotImplementedError

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        """Fill the `fresh` solo cache as it was after `stop` tokens. `parts` end there."""
        raise NotImplementedError

    def join_behind(self, fresh: Cache, spans: Spans, parts: Sequence[Arrays], stop: int) -> None:
        """Fill a cache that refers to `spans`, which `parts` follow."""
        raise NotImplementedError

    def adopts(self, fresh: Cache, strip: Strip) -> bool:
        """Return whether a sequence should take over an ended one's buffers."""
        return False

    def scheme(self, cache: Cache) -> Scheme | None:
        return None

    def layer_kv(self, cache: Cache) -> LayerKv:
        """Return what such caches keep, from a solo cache of one token. Raises CannotFill."""
        raise CannotFill(f"its {type(cache).__name__} has an unknown size")

    def fill(self, fresh: Cache, short: Cache, tokens: int, chunk: int) -> None:
        """Fill a fresh solo cache with zeros, as after a prefill in chunks. `short` is one of one
        token. Raises CannotFill."""
        raise CannotFill(f"its {type(fresh).__name__} can't be filled")


def spare_tail(stop: int) -> int:
    """Return the unused places after `stop` tokens, at least one."""
    return places_with_room(stop) - stop


def concatenate(parts: Sequence[Arrays], spare: int = 0) -> Arrays:
    """Join parts along the token axis, with `spare` zeroed places."""
    arrays = []
    for pieces in zip(*parts, strict=True):
        *lead, _, width = pieces[0].shape
        tail = mx.broadcast_to(mx.zeros((), pieces[0].dtype), (*lead, spare, width))
        arrays.append(mx.concatenate([*pieces, tail] if spare else list(pieces), axis=-2))
    return tuple(arrays)


def newest(parts: Sequence[Arrays], count: int) -> list[Arrays]:
    """Return the parts of the last `count` tokens."""
    backwards, missing = list[Arrays](), count
    for part in reversed(parts):
        if not missing:
            break
        length = part[0].shape[-2]
        taken = min(length, missing)
        backwards.append(token_slice(part, length - taken, length))
        missing -= taken
    return backwards[::-1]


def token_slice(arrays: Arrays, start: int, stop: int) -> Arrays:
    """Return tokens [start, stop) of a part, as views."""
    if start == 0 and all(array.shape[-2] == stop for array in arrays):
        return arrays
    return tuple(array[..., start:stop, :] for array in arrays)


def token_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes // array.shape[2] for array in arrays)


def zeros(like: Arrays, tokens: int) -> Arrays:
    return tuple(mx.zeros((*a.shape[:2], tokens, a.shape[3]), a.dtype) for a in like)
