"""Measures mlx-lm's own loops and forwards, as the self-test's reference. Mlx thread."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import BatchGenerator, generate_step

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.model_shape import scheme_of

# The spacing of a dtype's numbers, relative to their size, is too small a bound: errors add up over
# the layers. float32 has at least the second one; keys and values in few bits have the third.
_SPACINGS = 4.0
_LEAST = 1e-4
_FEW_BITS = 0.02
_SIDE = 512


@contextmanager
def mlx_lm_caches(model: nn.Module) -> Iterator[None]:
    """Make `model` create mlx-lm's caches within the block."""
    ours = vars(model).pop("make_cache", None)
    try:
        yield
    finally:
        if ours is not None:
            model.make_cache = ours


def decode_rate(loaded: LoadedModel, prompts: Sequence[Sequence[int]], count: int) -> float:
    """Return the tokens per second of mlx-lm's loop for `count` tokens after each prompt; 0 if too
    short."""
    with mlx_lm_caches(loaded.target):
        if len(prompts) == 1:
            return rate_since_all_began([_times_alone(loaded.target, prompts[0], count)])
        return rate_since_all_began(_times_together(loaded.target, prompts, count))


def _times_alone(model: nn.Module, prompt: Sequence[int], count: int) -> list[float]:
    steps = generate_step(mx.array(list(prompt)), model, max_tokens=count)
    return [time.perf_counter() for _ in steps]


def _times_together(
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
    """Return tokens per second, by the times of tokens, while all answers run; 0 for an empty
    span."""
    begun, ended = max(own[0] for own in times), min(own[-1] for own in times)
    counted = sum(begun < at <= ended for own in times for at in own)
    return counted / (ended - begun) if ended > begun else 0.0


def matmul_gflops() -> float:
    """Return the best of three float32 matrix products."""
    matrix = mx.ones((_SIDE, _SIDE))
    mx.eval(matrix)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        mx.eval(matrix @ matrix)
        seconds.append(time.perf_counter() - begun)
    return 2 * _SIDE**3 / min(seconds) / 1e9


@dataclass(frozen=True, slots=True)
class Gap:
    """The distance in logits of the less likely of two tokens from the likeliest. Up to `bound` it
    may be rounding."""

    logits: float
    bound: float

    @property
    def is_tie(self) -> bool:
        return self.logits <= self.bound


def gap_after(loaded: LoadedModel, tokens: Sequence[int], first: int, second: int) -> Gap:
    """Return the gap of two tokens after `tokens`, by the model alone on fresh caches. Waits."""
    model, caches = loaded.target, cache_ops.new_caches(loaded.target)
    size, last = device_policy.current().chunk, len(tokens) - 1
    for start in range(0, last, size):
        model(mx.array([list(tokens[start : min(start + size, last)])]), cache=caches)
        cache_ops.evaluate(caches, wait=True)
    found = model(mx.array([[tokens[-1]]]), cache=caches)[0, -1]
    logits = found.astype(mx.float32)
    highest, largest = _number(logits.max()), _number(mx.abs(logits).max())
    lower = min(_number(logits[first]), _number(logits[second]))
    share = max(_LEAST, _SPACINGS * float(mx.finfo(found.dtype).eps))
    if scheme_of(loaded) is not None:
        share = max(share, _FEW_BITS)
    return Gap(highest - lower, share * max(1.0, largest))


def _number(scalar: mx.array) -> float:
    number: float = scalar.item()  # type: ignore[assignment]
    return number
