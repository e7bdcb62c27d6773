"""How long a decode takes by its width, measured when a model is loaded: what a draft costs to
verify, on this device, with these weights.
"""

import time

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.core.speculation.depth import StepCosts
from omlx_server.core.work import Work

# The ends and the middle first: a slow device has no time for all of them.
_WIDTHS = (1, 64, 8, 2, 4, 16, 32)
_MOST_SECONDS = 1.5
# So many tokens more take as long again as the first, until it is measured.
_AS_LONG_AGAIN = 8
# The first run of a width compiles its kernels.
_RUNS = 2


def measuring(model: nn.Module, most: int) -> Work[StepCosts]:
    """Measures forwards of up to `most` tokens, one in each slice. What would probably take more
    than a second and a half with all before is left out, but for that of one token."""
    begun, probed = time.perf_counter(), dict[int, float]()
    for width in dict.fromkeys(min(width, most) for width in _WIDTHS):
        guess = _RUNS * probed.get(1, 0.0) * (1 + width / _AS_LONG_AGAIN)
        if time.perf_counter() - begun + guess > _MOST_SECONDS and probed:
            continue
        seconds = []
        for _ in range(_RUNS):
            seconds.append(_forward(model, width))
            yield
        probed[width] = min(seconds)
    return StepCosts(sorted(probed.items()))


def _forward(model: nn.Module, width: int) -> float:
    """Seconds that it takes to choose a token after each of `width` tokens."""
    tokens = mx.ones((1, width), dtype=mx.int32)
    caches = cache_ops.new_caches(model)
    begun = time.perf_counter()
    mx.eval(mx.argmax(model(tokens, cache=caches), axis=-1))
    return time.perf_counter() - begun
