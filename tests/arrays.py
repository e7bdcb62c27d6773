"""mx.array to plain Python without the unions of its type stubs, and arrays of random numbers."""

from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np

MOST_TOKENS = 4096


def plain(array: mx.array) -> Any:
    """Nested lists, or a number where the array has no axes."""
    return array.tolist()


def drawn_tokens(
    seed: int, start: int, stop: int, heads: int, width: int
) -> tuple[mx.array, mx.array]:
    """Keys and values [1, heads, T, width] of tokens of a sequence: every token has its own."""
    assert stop <= MOST_TOKENS
    keys, values = _sequence(seed, heads, width)[..., start:stop, :]
    return mx.array(np.ascontiguousarray(keys)), mx.array(np.ascontiguousarray(values))


@lru_cache(32)
def _sequence(seed: int, heads: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Outside of MLX, whose memory some tests look at."""
    shape = (2, 1, heads, MOST_TOKENS, width)
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
