"""The one place where we hook into mlx-lm: its attention on quantised caches.

Models call `scaled_dot_product_attention` of `mlx_lm.models.base`. It hands on what a cache with
`bits` holds to `quantized_scaled_dot_product_attention`, which it looks up at each call. From
`install` on that name is ours: what came out of our caches is attended by its scheme, everything
else goes where it went before.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from omlx_server.compute.kv.base import PackedKV


def install() -> None:
    """Use it from now on. Doing so again changes nothing."""
    current = base.quantized_scaled_dot_product_attention
    if not isinstance(current, Dispatch):
        base.quantized_scaled_dot_product_attention = Dispatch(current)


class Dispatch:
    """Called as mlx-lm's own function."""

    def __init__(self, original: Callable[..., mx.array]) -> None:
        self.original = original

    def __call__(
        self, queries: mx.array, q_keys: Any, q_values: Any, scale: float, mask: Any, **options: Any
    ) -> mx.array:
        if isinstance(q_keys, PackedKV) and isinstance(q_values, PackedKV):
            keys, values = q_keys.arrays, q_values.arrays
            return q_keys.scheme.attend(queries, keys, values, scale=scale, mask=mask)
        return self.original(queries, q_keys, q_values, scale=scale, mask=mask, **options)
