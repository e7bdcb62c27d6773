"""Filters before a token is drawn: min_p, then top_k, then top_p. Dropped tokens get -inf; ties
with the last kept token stay. Sums are in order of the logits, the same in any batch."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx

from omlx_server.core.request import SamplingParams

T = TypeVar("T")

_NEVER = float("-inf")
_EVERY = float("inf")
_LEAST_TOP_P = 1e-30  # keeps the likeliest token only
_CHUNK = 64


def for_rows(
    x: mx.array,
    rows: Sequence[T],
    wanted: Sequence[bool],
    change: Callable[[mx.array, list[T]], mx.array],
) -> mx.array:
    """Return x [B, V] with the `wanted` rows replaced by `change`."""
    if not any(wanted):
        return x
    if all(wanted):
        return change(x, list(rows))
    indices = [i for i, yes in enumerate(wanted) if yes]
    at = mx.array(indices)
    result = mx.array(x)
    result[at] = change(x[at], [rows[i] for i in indices])
    return result


def filtered(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    """Apply all filters to logits f32 [R, V], already divided by the temperature."""
    vocab = logits.shape[-1]
    has_top_k = [0 < row.top_k < vocab for row in rows]
    # A row with top_k gets its top_p there, too.
    has_top_p_alone = [
        row.top_p < 1 and not top_k for row, top_k in zip(rows, has_top_k, strict=True)
    ]
    logits = for_rows(logits, rows, [row.min_p > 0 for row in rows], _apply_min_p)
    logits = for_rows(logits, rows, has_top_k, _apply_top_k)
    return for_rows(logits, rows, has_top_p_alone, _apply_top_p)


def _apply_min_p(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    min_p = mx.array([[row.min_p] for row in rows])
    least = logits.max(axis=-1, keepdims=True) + mx.log(min_p)
    return mx.where(logits >= least, logits, _NEVER)


def _apply_top_k(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    counts = [row.top_k for row in rows]
    most = max(counts)
    first_kept = mx.array([[most - count] for count in counts])
    return _keep_top_p(logits, _largest(logits, most), mx.arange(most) >= first_kept, rows)


def _apply_top_p(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    return _keep_top_p(logits, mx.sort(logits, axis=-1), mx.array(True), rows)


def _keep_top_p(
    logits: mx.array, best: mx.array, eligible: mx.array, rows: Sequence[SamplingParams]
) -> mx.array:
    """Keep the likeliest tokens that reach top_p together, the last one included. `best` [R, K]
    are the largest logits, ascending; those not `eligible` are dropped."""
    top_p = mx.array([[max(row.top_p, _LEAST_TOP_P) if row.top_p < 1 else _EVERY] for row in rows])
    weights = mx.where(eligible, mx.exp(best - best[:, -1:]), 0)
    weights_above = mx.cumsum(weights, axis=-1, reverse=True, inclusive=False)
    total = weights_above[:, :1] + weights[:, :1]
    kept = eligible & (weights_above < top_p * total)
    least = mx.min(mx.where(kept, best, _EVERY), axis=-1, keepdims=True)
    return mx.where(logits >= least, logits, _NEVER)


def _largest(x: mx.array, count: int) -> mx.array:
    """Return the `count` largest of each row [R, V], ascending. They are in the `count` chunks with
    the largest maxima."""
    rows, vocab = x.shape
    if count * _CHUNK * 2 < vocab:
        if missing := -vocab % _CHUNK:
            x = mx.pad(x, [(0, 0), (0, missing)], constant_values=_NEVER)
        chunks = x.reshape(rows, -1, _CHUNK)
        best = mx.argpartition(chunks.max(axis=-1), -count, axis=-1)[:, -count:]
        x = mx.take_along_axis(chunks, best[:, :, None], axis=1).reshape(rows, -1)
    return mx.sort(mx.partition(x, -count, axis=-1)[:, -count:], axis=-1)
