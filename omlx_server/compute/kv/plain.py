"""A scheme that stores nothing in few bits: for probes that only look at what a model computes."""

import mlx.core as mx

from omlx_server.compute.kv.base import Arrays, Mask


class Plain:
    """Keys and values stay as they came."""

    name = "plain"

    def check(self, head_dim: int) -> None:
        pass

    def quantize_keys(self, x: mx.array) -> Arrays:
        return (x,)

    def quantize_values(self, x: mx.array) -> Arrays:
        return (x,)

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, *, scale: float, mask: Mask
    ) -> mx.array:
        return mx.fast.scaled_dot_product_attention(
            queries, keys[0], values[0], scale=scale, mask=mask
        )
