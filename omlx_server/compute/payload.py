"""Payloads: what the hot tier holds for a block or a checkpoint. A payload refers to the run that
computed it where possible (compute/kv/spans.py), and copies all else. Arrays of one shape and dtype
share a buffer, because Metal bounds the number of buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.pair import members
from omlx_server.compute.architectures.special import NOT_REUSED, architecture_of
from omlx_server.compute.caches import Caches
from omlx_server.compute.codecs.base import Arrays, CacheRow, Codec, token_slice
from omlx_server.compute.codecs.registry import codecs_for, leaves
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.spans import Runs, Segment, Span, Strip, TokenRun, count_referred
from omlx_server.core.blocks.block import CacheLayout, LayerKind, Size
from omlx_server.core.blocks.record import PackedArrays, RecordTensor
from omlx_server.core.memory.kv import GROWTH

PAYLOAD_VERSION = 1
SHORT_BLOCKS = 8  # idle runs of fewer blocks are given up
# MLX's and numpy's dtypes by their names in files. Buffers have no bfloat16: it is stored as u16.
_TYPES = {
    "BOOL": (mx.bool_, np.bool_),
    "U8": (mx.uint8, np.uint8),
    "I8": (mx.int8, np.int8),
    "U16": (mx.uint16, np.uint16),
    "I16": (mx.int16, np.int16),
    "F16": (mx.float16, np.float16),
    "BF16": (mx.bfloat16, np.uint16),
    "U32": (mx.uint32, np.uint32),
    "I32": (mx.int32, np.int32),
    "F32": (mx.float32, np.float32),
    "U64": (mx.uint64, np.uint64),
    "I64": (mx.int64, np.int64),
}
_NAMES = {ours: name for name, (ours, _) in _TYPES.items()}


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Payload:
    """The arrays of a block or checkpoint. `places` gives (buffer, index) for each leaf's
    arrays. The leaves numbered in `referring` are in the `segment` instead, in order."""

    buffers: Arrays
    places: tuple[tuple[tuple[int, int], ...], ...]
    segment: Segment | None = None
    referring: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.own_bytes + self.referred_bytes

    @property
    def own_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def referred_bytes(self) -> int:
        return self.segment.nbytes if self.segment is not None else 0

    @property
    def is_lost(self) -> bool:
        return self.segment is not None and self.segment.run.is_lost

    def leaves(self) -> list[Arrays]:
        """Return views of every leaf's arrays. Raises LostTokens if it `is_lost`."""
        parts = [mx.split(buffer, buffer.shape[0]) for buffer in self.buffers]
        leaves = [tuple(parts[buffer][index] for buffer, index in places) for places in self.places]
        if self.segment is not None:
            for leaf, span in zip(self.referring, self.segment.spans(), strict=True):
                keys, values = span.arrays()
                leaves[leaf] = *keys, *values
        return leaves

    def first(self, tokens: int) -> "Payload":
        """Return a copy of the first `tokens` tokens; itself if it has no more."""
        leaves = self.leaves()
        if all(array.shape[-2] == tokens for arrays in leaves for array in arrays):
            return self
        return _pack_by_shape([token_slice(arrays, 0, tokens) for arrays in leaves])

    def detached(self) -> "Payload":
        """Return a payload without a segment: itself, or an uncomputed copy."""
        return _pack_by_shape(self.leaves()) if self.segment is not None else self

    def detach(self) -> None:
        """Replace the segment, if any, by a copy. Launches it."""
        if self.segment is None:
            return
        copy = self.detached()
        device.launch(*copy.buffers)
        self.buffers, self.places = copy.buffers, copy.places
        self.segment, self.referring = None, ()

    def refer(self, segment: Segment, referring: tuple[int, ...]) -> None:
        """Refer to the segment's tokens and drop the own copy."""
        if self.segment is None and any(self.places[leaf] for leaf in referring):
            others = self.leaves()
            for leaf in referring:
                others[leaf] = ()
            packed = _pack_by_shape(others)
            self.buffers, self.places = packed.buffers, packed.places
        self.segment, self.referring = segment, referring
        segment.hold(self)


class BlockCodec:
    """Cuts payloads out of one model's caches, and restores caches."""

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
            refers=any(codec.by_reference for codec in codecs),
            copies=GROWTH,
        )
        self.runs = Runs(SHORT_BLOCKS * self.layout.block_size, self.layout.copies)

    @classmethod
    def of(cls, model: nn.Module, block_size: int) -> "BlockCodec | None":
        """Return a model's codec; None if `why_not_reused`."""
        codecs = codecs_for(cache_ops.new_caches(model))
        return cls(model, codecs, block_size) if codecs and not why_not_reused(model) else None

    def cut_block(self, caches: Caches, row: CacheRow, start: int, stop: int) -> Payload:
        """Return the DELTA and WINDOW parts of tokens [start, stop), or references. Uncomputed."""
        flat = list(leaves(caches))
        referring = self._numbers_by_reference(flat)
        segment = self._segment_of_row(flat, referring, row.index, start, stop)
        parts = list[Arrays]()
        for number, (codec, leaf) in enumerate(zip(self._codecs, flat, strict=True)):
            is_in_segment = segment is not None and number in referring
            is_copied = codec.kind is not LayerKind.CHECKPOINT and not is_in_segment
            parts.append(codec.cut(leaf, row, start, stop) if is_copied else ())
        block = _pack_by_shape(parts)
        if segment is not None:
            block.refer(segment, referring)
        return block

    def cut_checkpoint(self, caches: Caches, row: CacheRow) -> Payload:
        """Return the current CHECKPOINT parts of a row, uncomputed."""
        return _pack_by_shape(
            [
                codec.cut(leaf, row, 0, row.length) if codec.kind is LayerKind.CHECKPOINT else ()
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
        rebase: bool = True,
    ) -> Caches:
        """Return solo caches as after `stop` tokens; the last block may reach beyond. Long segments
        are referred to, the rest is copied. With `rebase` an ended sequence's buffers may be taken
        over, and copied blocks refer to the copy. Without `launch` nothing is computed."""
        caches = cache_ops.new_caches(self._model)
        flat, size = list(leaves(caches)), self.layout.block_size
        adopted = self._strips_to_adopt(flat, blocks, stop) if rebase else {}
        segments = [] if adopted else _segments_to_refer_to(blocks, size, stop, self.runs.least)
        copied_from = segments[-1].stop if segments else 0
        spans = _spans_by_leaf(blocks, segments)
        parts = _BlockParts(blocks, size, stop)
        for number, (codec, leaf) in enumerate(zip(self._codecs, flat, strict=True)):
            if codec.kind is LayerKind.CHECKPOINT:
                assert checkpoint is not None, "a recurrent layer needs its checkpoint"
                codec.join(leaf, [checkpoint.leaves()[number]], stop)
            elif number in adopted:
                leaf.adopt(adopted[number], stop)
            elif number in spans:
                codec.join_behind(leaf, spans[number], parts.of_leaf(number, copied_from), stop)
            else:
                codec.join(leaf, parts.of_leaf(number, 0), stop)
            if launch:
                cache_ops.evaluate([leaf], wait=False)
        if rebase and not adopted:
            self._rebase_blocks(flat, blocks, copied_from, stop)
        return caches

    def _strips_to_adopt(
        self, flat: Caches, blocks: Sequence[Payload], stop: int
    ) -> Mapping[int, Strip]:
        """Return the strips, by leaf number, to take over. Empty unless all blocks are of one
        run that nobody reads, with few tokens after `stop`."""
        segment = blocks[-1].segment if blocks else None
        if segment is None or not segment.run.is_free:
            return {}
        run, (start, end) = segment.run, segment.run.extent
        if start or run.strips[0].first or end > stop * 5 // 4:
            return {}
        if not all(block.segment is not None and block.segment.run is run for block in blocks):
            return {}
        strips = dict(zip(blocks[-1].referring, run.strips, strict=True))
        if not all(self._codecs[leaf].adopts(flat[leaf], strip) for leaf, strip in strips.items()):
            return {}
        run.clear_behind(stop)
        return strips

    def _rebase_blocks(
        self, flat: Caches, blocks: Sequence[Payload], first: int, stop: int
    ) -> None:
        """Let full blocks after `first` refer to these caches, unless a running one has them."""
        size, referring = self.layout.block_size, self._numbers_by_reference(flat)
        runs = {block.segment.run for block in blocks if block.segment is not None}
        free = {id(run) for run in runs if run.is_free}
        copied = list[mx.array]()
        for start in range(first, stop - size + 1, size):
            block = blocks[start // size]
            if block.segment is None or id(block.segment.run) in free:
                segment = self._segment_of_row(flat, referring, 0, start, start + size)
                if segment is not None:
                    block.refer(segment, referring)
                    copied += block.buffers
        device.launch(copied)  # until then they keep all that was in one buffer with them

    def _numbers_by_reference(self, flat: Caches) -> tuple[int, ...]:
        numbered = enumerate(zip(self._codecs, flat, strict=True))
        return tuple(n for n, (codec, leaf) in numbered if codec.by_reference and not leaf.empty())

    def _segment_of_row(
        self, flat: Caches, referring: tuple[int, ...], row: int, start: int, stop: int
    ) -> Segment | None:
        strips = tuple(flat[number].strip(row) for number in referring)
        if not strips or start < strips[0].first:
            return None
        return Segment(self.runs.of(strips), start, stop)


class _BlockParts:
    """The parts of blocks up to token `stop`, by leaf, opened when first needed."""

    def __init__(self, blocks: Sequence[Payload], size: int, stop: int) -> None:
        self._size, self._stop = size, stop
        self._leaves = cache(lambda number: blocks[number].leaves())

    def of_leaf(self, leaf: int, first: int) -> list[Arrays]:
        """Return one leaf's parts of the blocks from token `first` on."""
        numbers = range(first // self._size, -(-self._stop // self._size))
        parts: list[Arrays] = [self._leaves(number)[leaf] for number in numbers]
        if parts:
            parts[-1] = token_slice(parts[-1], 0, self._stop - numbers[-1] * self._size)
        return parts


def _segments_to_refer_to(
    blocks: Sequence[Payload], size: int, stop: int, least: int
) -> list[Segment]:
    """Return the leading segments that a row refers to, neighbours of one run joined."""
    runs = list[tuple[TokenRun, int, int]]()
    for start, block in zip(range(0, stop // size * size, size), blocks, strict=False):
        if block.segment is None:
            break
        if runs and runs[-1][0] is block.segment.run:
            runs[-1] = (runs[-1][0], runs[-1][1], start + size)
        else:
            runs.append((block.segment.run, start, start + size))
    lengths = [stop - start for _, start, stop in runs]
    free = [run.is_free for run, _, _ in runs]
    return [
        Segment(run, start, stop)
        for run, start, stop in runs[: count_referred(lengths, free, least)]
    ]


def _spans_by_leaf(
    blocks: Sequence[Payload], segments: Sequence[Segment]
) -> dict[int, tuple[Span, ...]]:
    if not segments:
        return {}
    by_layer = zip(*(segment.spans() for segment in segments), strict=True)
    return dict(zip(blocks[0].referring, by_layer, strict=True))


def why_not_reused(model: nn.Module) -> str:
    """Return why this model's caches can't be cut into blocks; empty where they can."""
    if codecs_for(cache_ops.new_caches(model)) is None:
        return "it has a kind of cache that is not known"
    reasons = (NOT_REUSED.get(architecture_of(member)) for member in members(model))
    return next(filter(None, reasons), "")


def size_of(payload: Payload) -> Size:
    """Return a payload's bytes and buffers, at least one, with its share of its run's."""
    shared, segment = 0, payload.segment
    if segment is not None:
        shared = segment.run.array_count // max(SHORT_BLOCKS, len(segment.run.segments))
    return Size(payload.nbytes, max(1, len(payload.buffers) + shared))


def _pack_by_shape(parts: Sequence[Arrays]) -> Payload:
    arrays_of: dict[tuple[tuple[int, ...], mx.Dtype], list[mx.array]] = {}
    buffer_of: dict[tuple[tuple[int, ...], mx.Dtype], int] = {}
    places = []
    for arrays in parts:
        places_of_part = []
        for array in arrays:
            key = (array.shape, array.dtype)
            buffer = buffer_of.setdefault(key, len(buffer_of))
            alike = arrays_of.setdefault(key, [])
            places_of_part.append((buffer, len(alike)))
            alike.append(array)
        places.append(tuple(places_of_part))
    # The first axis of each array has one element. `concatenate` would return a single array as it
    # is: a view of the cache.
    buffers = tuple(
        mx.concatenate(alike) if len(alike) > 1 else mx.contiguous(alike[0])
        for alike in arrays_of.values()
    )
    return Payload(buffers, tuple(places))


def pack(payload: Payload) -> PackedArrays:
    """Return a payload's arrays as bytes. Waits until they are computed."""
    own = payload.detached()
    device.wait_for(*own.buffers)
    return PackedArrays(tuple(_record_of(buffer) for buffer in own.buffers), own.places)


def unpack(packed: PackedArrays) -> Payload:
    """Return a payload with memory of its own. Raises ValueError for damaged bytes."""
    buffers = tuple(_array_of(tensor) for tensor in packed.tensors)
    for leaf in packed.places:
        for buffer, index in leaf:
            if not (0 <= buffer < len(buffers) and 0 <= index < buffers[buffer].shape[0]):
                raise ValueError("a layer's place is outside of the stored arrays")
    return Payload(buffers, packed.places)


def _record_of(array: mx.array) -> RecordTensor:
    plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    device.wait_for(plain)
    data = memoryview(plain).cast("B") if plain.size else b""  # type: ignore[arg-type]
    return RecordTensor(_NAMES[array.dtype], array.shape, data)


def _array_of(tensor: RecordTensor) -> mx.array:
    if tensor.dtype not in _TYPES:
        raise ValueError(f"arrays of {tensor.dtype} are not stored by this version")
    _, kind = _TYPES[tensor.dtype]
    numbers: Any = np.frombuffer(tensor.data, dtype=kind).reshape(tensor.shape)
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if tensor.dtype == "BF16" else array
