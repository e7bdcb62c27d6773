"""Measures the time of a decode by its width: the cost of verifying a draft."""

import time
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.heads import Headed
from omlx_server.compute.caches import Caches
from omlx_server.core.ranks import ALONE, Ranks
from omlx_server.core.speculation.depth import StepCosts
from omlx_server.core.work import Work

# The ends and the middle first: a slow device has no time for all of them.
_WIDTHS = (1, 64, 8, 2, 4, 16, 32)
_MOST_SECONDS = 1.5
# A guess: each further 8 tokens take as long as the first one.
_AS_LONG_AGAIN = 8
# The first run of a width compiles its kernels.
_RUNS = 2


Forward = Callable[[mx.array], mx.array]
"""Logits [1, T, V] for tokens int [1, T]."""
Fresh = Callable[[], Forward]
"""Makes a forward with fresh caches, which is not timed."""


def forward_of(model: nn.Module, ranks: Ranks = ALONE) -> Fresh:
    """Return forwards of a model alone. The first of `ranks` makes the others run them too."""

    def forward(caches: Caches, tokens: mx.array) -> mx.array:
        ranks.feed(tokens.shape[1])
        logits: mx.array = model(tokens, cache=caches)
        return logits

    return lambda: partial(forward, cache_ops.new_caches(model))


def forward_of_heads(headed: Headed) -> Fresh:
    def fresh() -> Forward:
        caches = cache_ops.new_caches(headed)[headed.own_caches :]

        def forward(tokens: mx.array) -> mx.array:
            hidden = mx.repeat(headed.no_hidden(1), tokens.shape[1], axis=1)
            return headed.draft(tokens, hidden, caches)[0]

        return forward

    return fresh


def measuring(fresh: Fresh, most: int) -> Work[StepCosts]:
    """Measure forwards of up to `most` tokens, one per slice, for about `_MOST_SECONDS`."""
    begun, probed = time.perf_counter(), dict[int, float]()
    for width in dict.fromkeys(min(width, most) for width in _WIDTHS):
        guess = _RUNS * probed.get(1, 0.0) * (1 + width / _AS_LONG_AGAIN)
        if time.perf_counter() - begun + guess > _MOST_SECONDS and probed:
            continue
        seconds = []
        for _ in range(_RUNS):
            seconds.append(seconds_of(fresh, width))
            yield
        probed[width] = min(seconds)
    return StepCosts(sorted(probed.items()))


def seconds_of(fresh: Fresh, width: int) -> float:
    """Return the seconds to choose a token after each of `width` tokens."""
    tokens, forward = mx.ones((1, width), dtype=mx.int32), fresh()
    begun = time.perf_counter()
    mx.eval(mx.argmax(forward(tokens), axis=-1))
    return time.perf_counter() - begun
