"""The interface of codecs. A codec knows of a cache class how it is cut into parts of blocks and
joined again, how it runs in a batch, and what memory it takes.

A part is what a block or checkpoint holds of one cache: a tuple of arrays. Those of DELTA and
WINDOW parts have the token axis at -2: [..., tokens, features].

A row of mlx-lm's batches is found from its end, because they are padded on the left:

    index    0 ... | padding | tokens 0 .. length-1 | unused
                                         newest = position of token length-1 in the array
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx_server.compute.kv.schemes.base import Scheme
from omlx_server.compute.kv.spans import Spans, Strip
from omlx_server.core.blocks.cache_layout import LayerKind
from omlx_server.core.memory.kv import LayerKv, places_with_room

# mlx-lm's cache classes share no typed base; what we need of them is written down in this folder.
Cache = Any

Arrays = tuple[mx.array, ...]


class CannotFill(Exception):
    """A cache is of a class whose size is not known, or that can't be made long without a prefill
    of a long prompt."""


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One sequence in a cache: its row (0 in a solo cache) and how many tokens it has."""

    index: int
    length: int


class Codec:
    """Knows the cache classes in `classes`, solo and batch forms. Stateless.

    This base class itself serves all cache classes that have no codec: their sequences run one at a
    time, nothing of them is stored, and the memory of a step is bounded, not measured.
    """

    classes: tuple[type, ...] = ()
    kind: LayerKind

    stores_decoded = True
    """Whether decoded tokens may become blocks, because a decode leaves the caches as a prefill of
    the same tokens would."""

    groupable = True
    """Whether chunks of several prompts may run in one forward."""

    recurrent = False
    """Whether the cache is a recurrent state. Then rows can't be padded on the right, unless it is
    known that they may (compute/row_ends.py): attention
    masks padding out, but several of mlx-lm's recurrent layers (nemotron_h, jamba, olmo_hybrid,
    mamba, rwkv7) do not stop at each row's own end. Nor can a row without a state be merged with
    others: it would get zeros, but not every model begins with zeros (recurrent_gemma)."""

    by_reference = False
    """Blocks can refer to the buffers of its caches, and rows to spans of other rows."""

    cuts_back = False
    """Whether a cache can forget its newest tokens (`cut_back`)."""

    cuts_rows_cheaply = False
    """Whether `cut_back` of different numbers of tokens is cheap."""

    puts_rows_back = True
    """Whether `undo` puts some rows back while others go on."""

    def batchable(self, fresh: Cache) -> bool:
        """Whether this solo cache has a batch form."""
        return False

    def begin_decode(self, cache: Cache) -> None:
        """Tell a solo cache that from now on tokens are decoded, which matters to some classes."""

    def finalize(self, cache: Cache) -> None:
        """End a forward of right-padded rows: drop the padding, which mlx-lm's caches do by
        turning it into padding on the left."""
        cache.finalize()

    def begin_verify(self, cache: Cache, lengths: Sequence[int], width: int) -> None:
        """Tell a cache that decodes that the next forward brings lengths[i] tokens of row i, which
        are padded on the right to `width`."""

    def end_verify(self, cache: Cache) -> None:
        """Tell it that this forward is built."""

    def cut_back(self, cache: Cache, counts: Sequence[int]) -> None:
        """Forget the last counts[i] tokens of row i of a cache, solo or batch: no more than the
        newest forward has brought. A ring's must have brought more than one."""
        raise NotImplementedError

    def undo(self, cache: Cache) -> Callable[[Sequence[int]], None] | None:
        """What undoes the next forward: called with counts, row i forgets its last counts[i]
        tokens, which are all that the forward brings, or its padding. It undoes several forwards
        too, if all rows forget all that these bring. None where that can't be done. Without
        `puts_rows_back` it is for a lone row, or for all."""
        return (lambda counts: self.cut_back(cache, counts)) if self.cuts_back else None

    def reusable(self, fresh: Cache) -> bool:
        """Whether parts hold all that this solo cache holds. A subclass of a known cache class may
        hold more."""
        return type(fresh) in self.classes

    def describe(self, fresh: Cache) -> str:
        """The format of the parts in words. It is part of the namespace of blocks."""
        raise NotImplementedError

    def window(self, fresh: Cache) -> int:
        """How many tokens a WINDOW layer looks back on; 0 for other kinds."""
        return 0

    def cut(self, cache: Cache, row: CacheRow, start: int, stop: int) -> Arrays:
        """The part for tokens [start, stop) of a row, or the whole state of a CHECKPOINT cache:
        mostly views, which hold the cache's memory. Does not modify the cache. Raises IndexError
        when a WINDOW cache no longer holds these tokens."""
        raise NotImplementedError

    def join(self, fresh: Cache, parts: Sequence[Arrays], stop: int) -> Cache:
        """Fill the `fresh` solo cache, so that it is as it was after `stop` tokens, and return it.
        `parts` are in order and end at `stop`; of a CHECKPOINT cache there is one."""
        raise NotImplementedError

    def join_behind(self, fresh: Cache, spans: Spans, parts: Sequence[Arrays], stop: int) -> None:
        """As `join`, of a codec with `by_reference`: `parts` follow the spans."""
        raise NotImplementedError

    def adopts(self, fresh: Cache, strip: Strip) -> bool:
        """Whether a sequence had rather go on in the buffers of one that has ended than refer to
        them: where attention in parts reads much more."""
        return False

    def adopt(self, fresh: Cache, strip: Strip, tokens: int) -> None:
        """Let the `fresh` solo cache go on behind the first tokens of an idle strip."""
        raise NotImplementedError

    def leave(self, cache: Cache) -> None:
        """Leave what blocks and rows refer to in a cache, solo or batch, whose rows all end."""

    def rejoin(self, cache: Cache) -> None:
        """Have blocks refer to a solo cache again that was merged into a batch in vain."""

    def lost_rows(self, cache: Cache) -> Sequence[int]:
        """The rows of a cache that refer to tokens that are lost; 0 if a solo cache does."""
        return ()

    def lose(self, cache: Cache) -> None:
        """Note that blocks may not use what is in a cache any more: a step has failed."""

    def scheme(self, cache: Cache) -> Scheme | None:
        """The scheme of a quantised cache; None for others."""
        return None

    def layer_kv(self, cache: Cache) -> LayerKv:
        """What caches like this one keep of a sequence; `cache` is a solo cache of one token.

        Raises:
            CannotFill: its size is not known.
        """
        raise CannotFill(f"its {type(cache).__name__} has an unknown size")

    def fill(self, fresh: Cache, short: Cache, tokens: int, chunk: int) -> None:
        """Fill a fresh solo cache with zeros, so that it is as large as after a prefill of `tokens`
        tokens in chunks of `chunk` tokens. `short` is a cache of the same layer with one token.

        Raises:
            CannotFill: only a real prefill can do that.
        """
        raise CannotFill(f"its {type(fresh).__name__} can't be filled")


def spare_tail(stop: int) -> int:
    """How many unused places follow the `stop` tokens of a rebuilt cache: one at least, so that the
    first decode after a restore does not copy the cache once more."""
    return places_with_room(stop) - stop


def concatenate(parts: Sequence[Arrays], spare: int = 0) -> Arrays:
    """The parts joined along the token axis, with `spare` zeroed places behind, in one copy."""
    joined = []
    for pieces in zip(*parts, strict=True):
        first = pieces[0]
        zero = mx.zeros((), first.dtype)
        tail = mx.broadcast_to(zero, (*first.shape[:-2], spare, first.shape[-1]))
        joined.append(mx.concatenate([*pieces, tail] if spare else list(pieces), axis=-2))
    return tuple(joined)


def newest(parts: Sequence[Arrays], count: int) -> list[Arrays]:
    """The last `count` tokens of parts that are in order, as parts that are views."""
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


def token_bytes(arrays: Arrays) -> int:
    """Bytes of each token in buffers [1, H, T, D]."""
    return sum(array.nbytes // array.shape[2] for array in arrays)


def zeros(like: Arrays, tokens: int) -> Arrays:
    """Buffers [B, H, tokens, D] of zeros, with the other axes and the dtypes of `like`."""
    return tuple(mx.zeros((*a.shape[:2], tokens, a.shape[3]), a.dtype) for a in like)
