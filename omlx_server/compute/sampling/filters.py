"""Filters before a token is drawn: min_p, then top_k, then top_p. Dropped tokens get -inf; ties
with the last kept token stay. Sums are in order of the logits, the same in any batch."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx

from omlx_server.core.request import SamplingParams

T = TypeVar("T")

_NEVER = float("-inf")
_ALL = float("inf")
_LEAST = 1e-30  # as top_p: only the likeliest token
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
    few = [0 < row.top_k < vocab for row in rows]
    likely = [row.top_p < 1 and not by_count for row, by_count in zip(rows, few, strict=True)]
    logits = for_rows(logits, rows, [row.min_p > 0 for row in rows], _min_p)
    logits = for_rows(logits, rows, few, _top_k)
    return for_rows(logits, rows, likely, _top_p)


def _min_p(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    floor = mx.array([[row.min_p] for row in rows])
    least = logits.max(axis=-1, keepdims=True) + mx.log(floor)
    return mx.where(logits >= least, logits, _NEVER)


def _top_k(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    counts = [row.top_k for row in rows]
    most = max(counts)
    first = mx.array([[most - count] for count in counts])
    return _nucleus(logits, _largest(logits, most), mx.arange(most) >= first, rows)


def _top_p(logits: mx.array, rows: Sequence[SamplingParams]) -> mx.array:
    return _nucleus(logits, mx.sort(logits, axis=-1), mx.array(True), rows)


def _nucleus(
    logits: mx.array, best: mx.array, eligible: mx.array, rows: Sequence[SamplingParams]
) -> mx.array:
    """Keep the smallest set that reaches top_p; `best` [R, K] are ascending."""
    parts = mx.array([[max(row.top_p, _LEAST) if row.top_p < 1 else _ALL] for row in rows])
    weights = mx.where(eligible, mx.exp(best - best[:, -1:]), 0)
    above = mx.cumsum(weights, axis=-1, reverse=True, inclusive=False)
    total = above[:, :1] + weights[:, :1]
    nucleus = eligible & (above < parts * total)
    least = mx.min(mx.where(nucleus, best, _ALL), axis=-1, keepdims=True)
    return mx.where(logits >= least, logits, _NEVER)


def _largest(x: mx.array, count: int) -> mx.array:
    """Return [R, count], ascending: they are in the `count` chunks with the largest maxima."""
    rows, vocab = x.shape
    if count * _CHUNK * 2 < vocab:
        if missing := -vocab % _CHUNK:
            x = mx.pad(x, [(0, 0), (0, missing)], constant_values=_NEVER)
        chunks = x.reshape(rows, -1, _CHUNK)
        best = mx.argpartition(chunks.max(axis=-1), -count, axis=-1)[:, -count:]
        x = mx.take_along_axis(chunks, best[:, :, None], axis=1).reshape(rows, -1)
    return mx.sort(mx.partition(x, -count, axis=-1)[:, -count:], axis=-1)
