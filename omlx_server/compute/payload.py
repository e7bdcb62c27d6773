"""Payloads: what the hot tier holds for a block or a checkpoint.

All arrays of one shape and dtype are packed into one buffer, because Metal bounds the number of
buffers as well as their bytes. A payload owns its memory: a slice of a cache would keep the whole
cache alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.special import NOT_REUSED, architecture_of
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Arrays, Codec, Row, token_slice
from omlx_server.compute.codecs.registry import codecs_for, leaves
from omlx_server.core.blocks.block import Size
from omlx_server.core.blocks.cache_layout import CacheLayout, Kind

PAYLOAD_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """The arrays of a block or checkpoint. `places` says for each array of each leaf (of the
    model's caches) where it is: (number of the buffer, index on its first axis)."""

    buffers: Arrays
    places: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def leaves(self) -> list[Arrays]:
        """Views of every leaf's arrays, as they were cut."""
        parts = [mx.split(buffer, buffer.shape[0]) for buffer in self.buffers]
        return [tuple(parts[buffer][index] for buffer, index in places) for places in self.places]

    def first(self, tokens: int) -> "Payload":
        """A copy of the first `tokens` tokens of a block's payload; itself if it has no more."""
        leaves = self.leaves()
        if all(array.shape[-2] == tokens for arrays in leaves for array in arrays):
            return self
        return _pack([token_slice(arrays, 0, tokens) for arrays in leaves])


class BlockCodec:
    """Cuts payloads out of one model's caches, and joins payloads to caches."""

    def __init__(self, model: nn.Module, codecs: Sequence[Codec], block_size: int) -> None:
        self._model = model
        self._codecs = tuple(codecs)
        fresh = list(leaves(cache_ops.new_caches(model)))
        windows = [c.window(leaf) for c, leaf in zip(codecs, fresh, strict=True)]
        described = [c.describe(leaf) for c, leaf in zip(codecs, fresh, strict=True)]
        smallest = min((w for w in windows if w), default=block_size)
        self.layout = CacheLayout(
            kinds=frozenset(codec.kind for codec in codecs),
            # A block must still be in the smallest ring when its last token has passed.
            block_size=min(block_size, 1 << (smallest.bit_length() - 1)),
            window=max(windows),
            format=f"v{PAYLOAD_VERSION}:" + ",".join(described),
            stores_decoded=all(codec.stores_decoded for codec in codecs),
        )

    @classmethod
    def of(cls, model: nn.Module, block_size: int) -> "BlockCodec | None":
        """The codec of a model; None if `why_not_reused` has a reason against it."""
        codecs = codecs_for(cache_ops.new_caches(model))
        return cls(model, codecs, block_size) if codecs and not why_not_reused(model) else None

    def cut_block(self, caches: Caches, row: Row, start: int, stop: int) -> Payload:
        """The DELTA and WINDOW parts of tokens [start, stop) of one row, not yet computed. Raises
        IndexError when a window no longer holds these tokens."""
        return _pack(
            [
                () if codec.kind is Kind.CHECKPOINT else codec.cut(leaf, row, start, stop)
                for codec, leaf in zip(self._codecs, leaves(caches), strict=True)
            ]
        )

    def cut_checkpoint(self, caches: Caches, row: Row) -> Payload:
        """The CHECKPOINT parts of one row as they are now, not yet computed."""
        return _pack(
            [
                codec.cut(leaf, row, 0, row.length) if codec.kind is Kind.CHECKPOINT else ()
                for codec, leaf in zip(self._codecs, leaves(caches), strict=True)
            ]
        )

    def join(
        self,
        blocks: Sequence[Payload],
        checkpoint: Payload | None,
        stop: int,
        *,
        launch: bool = True,
    ) -> Caches:
        """Fresh solo caches as they were after `stop` tokens. `blocks` are those of a sequence from
        its first token on; the last one may go beyond `stop`. `checkpoint` is the one at `stop`,
        and is needed where a layer is recurrent.

        With `launch` each layer is launched before the next is made, so that memory never peaks
        above the result; nothing is waited for. Without it nothing is launched: that is right for
        caches that are merged next, whose solo form then never exists as a whole.
        """
        caches = cache_ops.new_caches(self._model)
        held, size = [block.leaves() for block in blocks], self.layout.block_size
        checkpoints = checkpoint.leaves() if checkpoint else []
        for number, (codec, leaf) in enumerate(zip(self._codecs, leaves(caches), strict=True)):
            if codec.kind is Kind.CHECKPOINT:
                assert checkpoints, "a recurrent layer needs its checkpoint"
                parts = [checkpoints[number]]
            else:
                parts = [
                    token_slice(its_leaves[number], 0, min(size, stop - start))
                    for start, its_leaves in zip(range(0, stop, size), held, strict=True)
                ]
            codec.join(leaf, parts, stop)
            if launch:
                cache_ops.evaluate([leaf], wait=False)
        return caches


def why_not_reused(model: nn.Module) -> str:
    """Why this model's caches can't be cut into blocks; empty where they can."""
    if codecs_for(cache_ops.new_caches(model)) is None:
        return "it has a kind of cache that is not known"
    return NOT_REUSED.get(architecture_of(model), "")


def size_of(payload: Payload) -> Size:
    """Bytes and buffers of a payload. A payload without arrays counts as one buffer, because its
    place in the index is not free."""
    return Size(payload.nbytes, max(1, len(payload.buffers)))


def _pack(parts: Sequence[Arrays]) -> Payload:
    groups: dict[tuple[tuple[int, ...], mx.Dtype], list[mx.array]] = {}
    places = []
    order: dict[tuple[tuple[int, ...], mx.Dtype], int] = {}
    for arrays in parts:
        own = []
        for array in arrays:
            key = (array.shape, array.dtype)
            buffer = order.setdefault(key, len(order))
            members = groups.setdefault(key, [])
            own.append((buffer, len(members)))
            members.append(array)
        places.append(tuple(own))
    # Each array is cut from one row, so its first axis has one element. `concatenate` returns a
    # single array as it is, which would be a view of the cache.
    buffers = tuple(
        mx.concatenate(members) if len(members) > 1 else mx.contiguous(members[0])
        for members in groups.values()
    )
    return Payload(buffers, tuple(places))
