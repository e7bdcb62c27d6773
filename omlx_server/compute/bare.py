"""Measures mlx-lm's own loops and forwards, as the self-test's reference. Mlx thread."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import BatchGenerator, generate_step

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.model_shape import scheme_of

# How far rounding moves a logit, as a share of the largest one. Errors add up over the layers.
_ROUNDING_SPACINGS = 4.0  # in units of the dtype's spacing
_LEAST_ROUNDING = 1e-4
_ROUNDING_IN_FEW_BITS = 0.02  # with quantised keys and values
_MATRIX_SIDE = 512


@contextmanager
def mlx_lm_caches(model: nn.Module) -> Iterator[None]:
    """Let the model make mlx-lm's own caches meanwhile, not ours."""
    make_our_caches = vars(model).pop("make_cache", None)
    try:
        yield
    finally:
        if make_our_caches is not None:
            model.make_cache = make_our_caches


def decode_rate(loaded: LoadedModel, prompts: Sequence[Sequence[int]], count: int) -> float:
    """Return mlx-lm's tokens per second for `count` tokens after each prompt; 0 if too short."""
    with mlx_lm_caches(loaded.target):
        if len(prompts) == 1:
            tokens = generate_step(mx.array(list(prompts[0])), loaded.target, max_tokens=count)
            return rate_since_all_began([[time.perf_counter() for _ in tokens]])
        return rate_since_all_began(_token_times_in_one_batch(loaded.target, prompts, count))


def _token_times_in_one_batch(
    model: nn.Module, prompts: Sequence[Sequence[int]], count: int
) -> list[list[float]]:
    generator = BatchGenerator(model, max_tokens=count)
    times: dict[int, list[float]] = {
        uid: [] for uid in generator.insert([list(prompt) for prompt in prompts])
    }
    unfinished = len(prompts)
    while unfinished:
        _, responses = generator.next()
        now = time.perf_counter()
        for response in responses:
            times[response.uid].append(now)
            unfinished -= response.finish_reason is not None
    generator.close()
    return list(times.values())


def rate_since_all_began(times: Sequence[Sequence[float]]) -> float:
    """Return tokens per second while all answers run. `times` are in seconds."""
    all_began, first_ended = max(row[0] for row in times), min(row[-1] for row in times)
    if first_ended <= all_began:
        return 0.0
    tokens = sum(all_began < token_time <= first_ended for row in times for token_time in row)
    return tokens / (first_ended - all_began)


def matmul_gflops() -> float:
    matrix = mx.ones((_MATRIX_SIDE, _MATRIX_SIDE))
    mx.eval(matrix)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        mx.eval(matrix @ matrix)
        seconds.append(time.perf_counter() - begun)
    return 2 * _MATRIX_SIDE**3 / min(seconds) / 1e9


@dataclass(frozen=True, slots=True)
class Gap:
    """Logits by which a token is behind the likeliest one. Up to `bound` that may be rounding."""

    logits: float
    bound: float

    @property
    def is_tie(self) -> bool:
        return self.logits <= self.bound


def gap_after(loaded: LoadedModel, tokens: Sequence[int], first: int, second: int) -> Gap:
    """Return the gap of the less likely of two tokens, `first` and `second`. Waits."""
    model, caches = loaded.target, cache_ops.new_caches(loaded.target)
    size, last = device_policy.current().chunk, len(tokens) - 1
    for start in range(0, last, size):
        model(mx.array([list(tokens[start : min(start + size, last)])]), cache=caches)
        cache_ops.evaluate(caches, wait=True)
    next_logits = model(mx.array([[tokens[-1]]]), cache=caches)[0, -1]
    logits = np.array(device.to_host(next_logits.astype(mx.float32)))
    rounding = max(_LEAST_ROUNDING, _ROUNDING_SPACINGS * float(mx.finfo(next_logits.dtype).eps))
    if scheme_of(loaded) is not None:
        rounding = max(rounding, _ROUNDING_IN_FEW_BITS)
    largest = max(1.0, float(np.abs(logits).max()))
    return Gap(float(logits.max() - logits[[first, second]].min()), rounding * largest)
