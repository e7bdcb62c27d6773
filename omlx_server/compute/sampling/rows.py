"""Changes some rows of a batch of logits."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx

T = TypeVar("T")


def for_rows(
    x: mx.array,
    rows: Sequence[T],
    wanted: Callable[[T], bool],
    change: Callable[[mx.array, list[T]], mx.array],
) -> mx.array:
    """x [B, V] of `rows`, with the wanted ones replaced by change(x of these, these). x is not
    modified."""
    indices = [i for i, row in enumerate(rows) if wanted(row)]
    if not indices:
        return x
    if len(indices) == len(rows):
        return change(x, list(rows))
    at = mx.array(indices)
    result = mx.array(x)
    result[at] = change(x[at], [rows[i] for i in indices])
    return result
