"""Softmax attention over stored tokens, tile by tile, so that no full-precision copy of a cache
exists. A tile is a span of tokens, a row one query of one head."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import mlx.core as mx

from omlx_server.compute.hardware import device
from omlx_server.compute.kv.schemes.base import Arrays, Mask, Partial, PowerBase, Scoring, views

_LOWEST = mx.finfo(mx.float32).min


@dataclass(frozen=True, slots=True, eq=False)
class StoredTiles:
    """All tokens' stored keys and values, arrays [B, H, T, F], read `size` tokens at a time."""

    keys: Arrays
    values: Arrays
    size: int

    @property
    def total(self) -> int:
        return self.keys[0].shape[2]

    @property
    def heads(self) -> int:
        return self.keys[0].shape[1]

    def score(self, rows: mx.array, start: int, stop: int) -> mx.array:
        """Return inner products f32 [B, H, R, tokens] of rows [B, H, R, D]."""
        raise NotImplementedError

    def mix(self, weights: mx.array, start: int, stop: int) -> mx.array:
        """Return sums f32 [B, H, R, D] of values with f32 weights [B, H, R, tokens]."""
        raise NotImplementedError


def attend(queries: mx.array, tiles: StoredTiles, **scoring: Unpack[Scoring]) -> mx.array:
    return attend_in_float32(queries, tiles, **scoring).astype(queries.dtype)


def attend_in_float32(
    queries: mx.array, tiles: StoredTiles, **scoring: Unpack[Scoring]
) -> mx.array:
    """Attend queries [B, Hq, L, D]: f32 [B, Hq, L, Dv], finite where nothing is seen."""
    if scoring.get("sinks") is not None or tiles.total > tiles.size or device.is_cpu():
        return attend_partly(queries, tiles, **scoring).answer()
    # A GPU that reads all tokens at once needs no sums to merge: MLX's softmax is one kernel.
    base = PowerBase.fastest()
    rows = _scaled_rows(queries, tiles, scoring["scale"] * base.log)
    scores = _masked_scores(rows, queries, tiles, scoring["mask"], 0, tiles.total, base)
    mixed = tiles.mix(mx.softmax(scores, axis=-1), 0, tiles.total)
    return mixed.reshape(*queries.shape[:3], -1)


def attend_partly(queries: mx.array, tiles: StoredTiles, **scoring: Unpack[Scoring]) -> Partial:
    """Attend queries [B, Hq, L, D] to these tokens only."""
    mask, sinks = scoring["mask"], scoring.get("sinks")
    base = PowerBase.fastest()
    length = queries.shape[2]
    by_head = (*queries.shape[:3], -1)
    rows = _scaled_rows(queries, tiles, scoring["scale"] * base.log)
    so_far: Partial | None = None
    for start in range(0, tiles.total, tiles.size):
        stop = min(start + tiles.size, tiles.total)
        if so_far is not None:
            [rows] = mx.depends([rows], [so_far.mixed, so_far.weight])
        scores = _masked_scores(rows, queries, tiles, mask, start, stop, base)
        so_far = _add_tile(so_far, scores, partial(tiles.mix, start=start, stop=stop), base)
    assert so_far is not None, "attention on an empty cache"
    if sinks is not None:
        sinks_of_rows = mx.repeat(sinks.reshape(tiles.heads, -1), length, axis=1)[..., None]
        so_far = _add_sinks(so_far, sinks_of_rows.astype(mx.float32) * base.log, base)
    return Partial(*(a.reshape(by_head) for a in (so_far.top, so_far.mixed, so_far.weight)))


def cut_tile(packed: Arrays, start: int, stop: int, after: mx.array) -> Arrays:
    """Return tokens [start, stop), not read before `after` is computed."""
    pieces = views(packed, start, stop)
    return tuple(mx.depends(list(pieces), [after])) if start else pieces


def _scaled_rows(queries: mx.array, tiles: StoredTiles, factor: float) -> mx.array:
    scaled = queries if factor == 1.0 else queries * factor
    return scaled.reshape(len(queries), tiles.heads, -1, queries.shape[3])


def _masked_scores(
    rows: mx.array,
    queries: mx.array,
    tiles: StoredTiles,
    mask: Mask,
    start: int,
    stop: int,
    base: PowerBase,
) -> mx.array:
    scores = tiles.score(rows, start, stop)
    mask_of_tile = _mask_of_tile(mask, queries.shape[2], tiles.total, start, stop)
    if mask_of_tile is None:
        return scores
    by_head = (*queries.shape[:3], -1)
    return _apply_mask(scores.reshape(by_head), mask_of_tile, base).reshape(scores.shape)


def _add_tile(
    so_far: Partial | None, scores: mx.array, mix: Callable[[mx.array], mx.array], base: PowerBase
) -> Partial:
    top = scores.max(axis=-1, keepdims=True)
    if so_far is not None:
        top = mx.maximum(top, so_far.top)
    weights = base.power_of_difference(scores, top)
    mixed, weight = mix(weights), weights.sum(axis=-1, keepdims=True)
    if so_far is None:
        return Partial(top, mixed, weight)
    decay = base.power(so_far.top - top)
    return Partial(top, so_far.mixed * decay + mixed, so_far.weight * decay + weight)


def _add_sinks(so_far: Partial, sinks: mx.array, base: PowerBase) -> Partial:
    top = mx.maximum(so_far.top, sinks)
    decay = base.power(so_far.top - top)
    return Partial(top, so_far.mixed * decay, so_far.weight * decay + base.power(sinks - top))


def _mask_of_tile(mask: Mask, length: int, total: int, start: int, stop: int) -> mx.array | None:
    """Return None when every row sees all."""
    if mask is None:
        return None
    if isinstance(mask, str):
        first = total - length
        if stop <= first + 1:
            return None
        return mx.arange(first, total)[:, None] >= mx.arange(start, stop)
    return mask if mask.shape[-1] == 1 else mask[..., start:stop]


def _apply_mask(scores: mx.array, mask: mx.array, base: PowerBase) -> mx.array:
    if mask.dtype == mx.bool_:
        return mx.where(mask, scores, _LOWEST)
    # With -inf for a whole row, differences from the largest would be NaN.
    return mx.maximum(scores + mask * base.log, _LOWEST)
