"""Softmax attention over stored tokens that are read tile by tile (a tile is a run of tokens).

A tile is unpacked, used and forgotten, so no full-precision copy of a cache ever exists, and the
scores of a tile stay in the processor's own caches. The sums so far are scaled down when a later
tile has a larger score. A row here is one query of one head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.base import Arrays, Mask

_LOWEST = mx.finfo(mx.float32).min
_LOG2_E = math.log2(math.e)


class Tiles(Protocol):
    """Stored keys and values of `heads` heads and `total` tokens, to be read `size` tokens at a
    time."""

    @property
    def total(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def size(self) -> int: ...

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        """The inner products f32 [B, H, R, tokens] of rows [B, H, R, D] with keys [start, stop)."""

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        """The sums f32 [B, H, R, D] of values [start, stop) with f32 weights [B, H, R, tokens]."""


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """The base of the powers in a softmax: `power` takes them, and scores are multiplied by `log`
    for it. On the CPU backend powers of two take a third of the time of `mx.exp`
    (compute/attention.py)."""

    log: float
    power: Callable[[mx.array], mx.array]

    @classmethod
    def fastest(cls) -> "_Base":
        return cls(_LOG2_E, partial(mx.power, 2.0)) if device.is_cpu() else cls(1.0, mx.exp)


@dataclass(frozen=True, slots=True, eq=False)
class _Sum:
    """The softmax over the tiles so far: `mixed` [B, H, R, D] is the weighted sum of the values,
    `weight` [B, H, R, 1] the sum of the weights. A score of `top`, the largest so far, has
    weight 1."""

    top: mx.array
    mixed: mx.array
    weight: mx.array


def attend(
    queries: mx.array,
    tiles: Tiles,
    *,
    scale: float,
    mask: Mask,
    sinks: mx.array | None = None,
) -> mx.array:
    """Attention of queries [B, Hq, L, D] to all tokens of the tiles: [B, Hq, L, Dv] in the dtype of
    the queries. For masks and sinks see `Scheme.attend`.

    A row that may see no token gets finite numbers, never NaN."""
    base = _Base.fastest()
    length = queries.shape[2]
    by_head = (*queries.shape[:3], -1)
    rows = (queries * (scale * base.log)).reshape(len(queries), tiles.heads, -1, queries.shape[3])
    so_far: _Sum | None = None
    for start in range(0, tiles.total, tiles.size):
        stop = min(start + tiles.size, tiles.total)
        if so_far is not None:
            [rows] = mx.depends([rows], [so_far.mixed, so_far.weight])
        scores = tiles.score(rows, start, stop)
        part = _mask_of(mask, length, tiles.total, start, stop)
        if part is not None:
            scores = _masked(scores.reshape(by_head), part, base).reshape(scores.shape)
        so_far = _grown(so_far, scores, partial(tiles.mix, start=start, stop=stop), base)
    assert so_far is not None, "attention on an empty cache"
    if sinks is not None:
        by_row = mx.repeat(sinks.reshape(tiles.heads, -1), length, axis=1)[..., None]
        so_far = _with_sinks(so_far, by_row.astype(mx.float32) * base.log, base)
    # A row that sees any token has a weight of at least 1; others must not be divided by 0.
    answer = so_far.mixed / mx.maximum(so_far.weight, 1.0)
    return answer.reshape(by_head).astype(queries.dtype)


def cut(packed: Arrays, start: int, stop: int, after: mx.array) -> Arrays:
    """Tokens [start, stop) of stored arrays, not to be read before `after` is computed: the rows or
    weights that need this tile. MLX computes breadth first, so without this, later tiles would be
    unpacked before their turn."""
    pieces = [array[..., start:stop, :] for array in packed]
    return tuple(mx.depends(pieces, [after]) if start else pieces)


def _grown(
    so_far: _Sum | None, scores: mx.array, mix: Callable[[mx.array], mx.array], base: _Base
) -> _Sum:
    """The sums with one more tile: its scores are [B, H, R, tokens], and `mix` sums its values."""
    # `top` is finite: where an added mask makes all scores -inf, differences would be NaN.
    floor = _LOWEST if so_far is None else so_far.top
    top = mx.maximum(scores.max(axis=-1, keepdims=True), floor)
    weights = base.power(scores - top)
    mixed, weight = mix(weights), weights.sum(axis=-1, keepdims=True)
    if so_far is None:
        return _Sum(top, mixed, weight)
    decay = base.power(so_far.top - top)
    return _Sum(top, so_far.mixed * decay + mixed, so_far.weight * decay + weight)


def _with_sinks(so_far: _Sum, sinks: mx.array, base: _Base) -> _Sum:
    """The sums with one more token, whose scores are [H, R, 1] and whose value is 0."""
    top = mx.maximum(so_far.top, sinks)
    decay = base.power(so_far.top - top)
    return _Sum(top, so_far.mixed * decay, so_far.weight * decay + base.power(sinks - top))


def _mask_of(mask: Mask, length: int, total: int, start: int, stop: int) -> mx.array | None:
    """The part of a mask for tokens [start, stop), or None when every row sees all of them."""
    if mask is None:
        return None
    if isinstance(mask, str):
        first = total - length
        if stop <= first + 1:
            return None
        return mx.arange(first, total)[:, None] >= mx.arange(start, stop)
    return mask if mask.shape[-1] == 1 else mask[..., start:stop]


def _masked(scores: mx.array, mask: mx.array, base: _Base) -> mx.array:
    if mask.dtype == mx.bool_:
        return mx.where(mask, scores, _LOWEST)
    return scores + mask * base.log
