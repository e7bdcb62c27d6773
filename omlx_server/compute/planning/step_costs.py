"""Measures the time of a decode by its width: the cost of verifying a draft."""

import time
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.architectures.pair import Headed
from omlx_server.compute.caches import Caches
from omlx_server.core.ranks import ALONE, Ranks
from omlx_server.core.speculation.depth import StepCosts
from omlx_server.core.work import Work

# The ends and the middle first: a slow device has no time for all of them.
_WIDTHS = (1, 64, 8, 2, 4, 16, 32)
_MOST_SECONDS = 1.5
# A guess before a width is run: each further 8 tokens take as long as the first one.
_TOKENS_AS_LONG_AS_FIRST = 8
# The first run of a width compiles its kernels.
_RUNS = 2


Forward = Callable[[mx.array], mx.array]
"""Logits [1, T, V] for tokens int [1, T]."""
MakeForward = Callable[[], Forward]
"""Makes a forward with fresh caches. That is not timed."""


def forward_of(model: nn.Module, ranks: Ranks = ALONE) -> MakeForward:
    """Return forwards of a model alone. The first of `ranks` makes the others run them too."""

    def forward(caches: Caches, tokens: mx.array) -> mx.array:
        ranks.feed(tokens.shape[1])
        logits: mx.array = model(tokens, cache=caches)
        return logits

    return lambda: partial(forward, cache_ops.new_caches(model))


def forward_of_heads(headed: Headed) -> MakeForward:
    def make_forward() -> Forward:
        caches = cache_ops.new_caches(headed)[headed.own_caches :]

        def forward(tokens: mx.array) -> mx.array:
            hidden = mx.repeat(headed.no_hidden(1), tokens.shape[1], axis=1)
            return headed.draft(tokens, hidden, caches)[0]

        return forward

    return make_forward


def measuring_step_costs(make_forward: MakeForward, most: int) -> Work[StepCosts]:
    """Measure forwards of up to `most` tokens, one per slice, for about `_MOST_SECONDS`."""
    begun, seconds_by_width = time.perf_counter(), dict[int, float]()
    for width in dict.fromkeys(min(width, most) for width in _WIDTHS):
        guess = _RUNS * seconds_by_width.get(1, 0.0) * (1 + width / _TOKENS_AS_LONG_AS_FIRST)
        if time.perf_counter() - begun + guess > _MOST_SECONDS and seconds_by_width:
            continue
        run_seconds = []
        for _ in range(_RUNS):
            run_seconds.append(seconds_of(make_forward, width))
            yield
        seconds_by_width[width] = min(run_seconds)
    return StepCosts(sorted(seconds_by_width.items()))


def seconds_of(make_forward: MakeForward, width: int) -> float:
    """Return the seconds to choose a token after each of `width` tokens."""
    tokens, forward = mx.ones((1, width), dtype=mx.int32), make_forward()
    begun = time.perf_counter()
    mx.eval(mx.argmax(forward(tokens), axis=-1))
    return time.perf_counter() - begun
