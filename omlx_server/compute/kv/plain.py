"""The scheme that stores keys and values as the model computes them."""

import mlx.core as mx

from omlx_server.compute.kv.base import Arrays, Mask


class Plain:
    """The `Scheme` that stores keys and values as the model computes them."""

    name = "kv"

    def check(self, head_dim: int) -> None:
        pass

    def quantize_keys(self, x: mx.array) -> Arrays:
        return (x,)

    def quantize_values(self, x: mx.array) -> Arrays:
        return (x,)

    def attend(
        self,
        queries: mx.array,
        keys: Arrays,
        values: Arrays,
        *,
        scale: float,
        mask: Mask,
        sinks: mx.array | None = None,
    ) -> mx.array:
        return mx.fast.scaled_dot_product_attention(
            queries, keys[0], values[0], scale=scale, mask=mask, sinks=sinks
        )
