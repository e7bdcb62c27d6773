"""Random keys and values."""

import mlx.core as mx
import numpy as np


def normal(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
