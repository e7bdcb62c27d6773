"""How long a decode takes by its width, measured when a model is loaded: what a draft costs to
verify, on this device, with these weights.
"""

import time

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.core.speculation.depth import StepCosts
from omlx_server.core.work import Work

_WIDTHS = (1, 2, 4, 8, 16, 32, 64)
# The first run of a width compiles its kernels.
_RUNS = 3


def measuring(model: nn.Module, most: int) -> Work[StepCosts]:
    """Measures forwards of up to `most` tokens, one in each slice."""
    probed = []
    for width in _widths(most):
        seconds = []
        for _ in range(_RUNS):
            seconds.append(_forward(model, width))
            yield
        probed.append((width, min(seconds)))
    return StepCosts(probed)


def _widths(most: int) -> list[int]:
    return sorted({*(width for width in _WIDTHS if width < most), most})


def _forward(model: nn.Module, width: int) -> float:
    """Seconds that it takes to choose a token after each of `width` tokens."""
    tokens = mx.ones((1, width), dtype=mx.int32)
    caches = cache_ops.new_caches(model)
    begun = time.perf_counter()
    mx.eval(mx.argmax(model(tokens, cache=caches), axis=-1))
    return time.perf_counter() - begun
