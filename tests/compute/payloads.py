"""Payloads of random bytes, compared."""

import mlx.core as mx
import numpy as np

from omlx_server.compute.payload import Payload


def raw(array: mx.array) -> bytes:
    """Every bit, NaNs included. A copy."""
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.array(bits).tobytes()


def same(one: Payload, other: Payload) -> bool:
    """Whether they hold the same bits, by reference or in arrays of their own."""
    one, other = one.detached(), other.detached()
    return one.places == other.places and all(
        (a.dtype, a.shape, raw(a)) == (b.dtype, b.shape, raw(b))
        for a, b in zip(one.buffers, other.buffers, strict=True)
    )
