"""Changes some rows of a batch of logits."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx

T = TypeVar("T")


def for_rows(
    x: mx.array,
    rows: Sequence[T],
    wanted: Sequence[bool],
    change: Callable[[mx.array, list[T]], mx.array],
) -> mx.array:
    """Return x [B, V] with the `wanted` rows replaced by `change` of them."""
    if not any(wanted):
        return x
    if all(wanted):
        return change(x, list(rows))
    indices = [i for i, yes in enumerate(wanted) if yes]
    at = mx.array(indices)
    result = mx.array(x)
    result[at] = change(x[at], [rows[i] for i in indices])
    return result
