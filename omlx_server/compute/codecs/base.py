"""What a codec does: cut what one layer remembers of some tokens, and join it to a cache again.

Arrays of DELTA and WINDOW parts have the token axis at -2: [..., tokens, features].

A row of a batch is found from its end, because batches are padded on the left:

    index    0 ... | padding | tokens 0 .. length-1 | unused
                                         newest = position of token length-1 in the array
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from omlx_server.compute.caches import Cache
from omlx_server.core.layout import Kind

# Caches grow by steps of this many tokens; a rebuilt one has the rest of a step to spare, so the
# first decode step after a restore does not copy it once more.
GROWTH_STEP = 256

Arrays = tuple[mx.array, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence in a cache: its row (0 in a solo cache) and how many tokens it has."""

    index: int
    length: int


class Codec(Protocol):
    """Stateless; one object serves every cache of its class. `stores_decoded`: a decode leaves in
    such a cache what a prefill of the same tokens would."""

    kind: Kind
    stores_decoded: bool

    def describe(self, fresh: Cache) -> str:
        """The format in words: part of the namespace."""

    def window(self, fresh: Cache) -> int:
        """Tokens that a WINDOW layer looks back on; 0 for other kinds."""

    def cut(self, cache: Cache, row: Row, start: int, stop: int) -> Arrays:
        """What the layer holds of tokens [start, stop), as views. CHECKPOINT: its whole state."""

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        """A cache of the class of `fresh`, as it was after `stop` tokens. `parts` are in order and
        end at `stop`. May use `fresh`."""


def spare_tail(stop: int) -> int:
    """How many unused places follow `stop` tokens."""
    return -stop % GROWTH_STEP or GROWTH_STEP


def concatenate(parts: Sequence[Arrays], spare: int = 0) -> Arrays:
    """Join parts along the token axis, with `spare` zeroed places behind. One copy, no more."""
    joined = []
    for pieces in zip(*parts, strict=True):
        first = pieces[0]
        zero = mx.zeros((), first.dtype)
        tail = mx.broadcast_to(zero, (*first.shape[:-2], spare, first.shape[-1]))
        joined.append(mx.concatenate([*pieces, tail] if spare else list(pieces), axis=-2))
    return tuple(joined)


def newest(parts: Sequence[Arrays], count: int) -> list[Arrays]:
    """The last `count` tokens of parts that are in order, as views."""
    kept: list[Arrays] = []
    for part in reversed(parts):
        if not count:
            break
        length = part[0].shape[-2]
        taken = min(length, count)
        kept.append(token_slice(part, length - taken, length))
        count -= taken
    return kept[::-1]


def token_slice(arrays: Arrays, start: int, stop: int) -> Arrays:
    """Tokens [start, stop) of a part, as views."""
    if start == 0 and all(array.shape[-2] == stop for array in arrays):
        return arrays
    return tuple(array[..., start:stop, :] for array in arrays)
