"""The one place where we hook into MLX: the attention that mlx-lm's models call by its name.

`mx.fast.scaled_dot_product_attention` is looked up at each call, by mlx-lm's own function for all
models and by models that call it themselves. From `install` on that name is ours: what came out of
our caches is attended by its scheme, everything else goes where it went before, or on the CPU
backend to attention that is faster there (compute/attention.py).
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from omlx_server.compute import attention
from omlx_server.compute.hardware import device
from omlx_server.compute.kv.base import Mask, PackedKV
from omlx_server.compute.kv.rows import RowMasks, RowsKV, picked


def install() -> None:
    """Use it from now on. Doing so again changes nothing."""
    current = mx.fast.scaled_dot_product_attention
    if not isinstance(current, Dispatch):
        faster = attention.attention if device.is_cpu() else current
        mx.fast.scaled_dot_product_attention = Dispatch(faster)


class Dispatch:
    """Called as MLX's own function."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self.original = original

    def __call__(
        self,
        q: mx.array,
        k: Any,
        v: Any,
        *,
        scale: float,
        mask: Any = None,
        **options: Any,
    ) -> mx.array:
        sinks = options.get("sinks")
        if isinstance(k, PackedKV) and isinstance(v, PackedKV):
            return _attended(q, k, v, scale, mask, sinks)
        if isinstance(k, RowsKV) and isinstance(v, RowsKV):
            return _by_groups(q, k, v, scale, mask, sinks)
        return self.original(q, k, v, scale=scale, mask=mask, **options)


def _attended(
    q: mx.array, k: PackedKV, v: PackedKV, scale: float, mask: Mask, sinks: mx.array | None
) -> mx.array:
    return k.scheme.attend(q, k.arrays, v.arrays, scale=scale, mask=mask, sinks=sinks)


def _by_groups(
    q: mx.array, k: RowsKV, v: RowsKV, scale: float, mask: Any, sinks: mx.array | None
) -> mx.array:
    """Queries [B, Hq, L, D], each group's on its own keys."""
    count = q.shape[2]
    masks = _row_masks(mask, count)
    parts, order = list[mx.array](), list[int]()
    for (group, keys), (_, values) in zip(k.groups, v.groups, strict=True):
        [queries] = picked((q,), group.rows)
        seen = masks.of(count, group.lengths)
        parts.append(_attended(queries, keys, values, scale, seen, sinks))
        order += group.rows
    if len(parts) == 1 and order == sorted(order):
        return parts[0]
    places = {row: place for place, row in enumerate(order)}
    return mx.concatenate(parts)[mx.array([places[row] for row in range(len(order))])]


def _row_masks(mask: Any, count: int) -> RowMasks:
    """Raises ValueError for a mask that is not that of rows of their own lengths."""
    if isinstance(mask, RowMasks):
        return mask
    if isinstance(mask, str) or (mask is None and count == 1):
        return RowMasks()
    raise ValueError("its attention has a mask of its own")
