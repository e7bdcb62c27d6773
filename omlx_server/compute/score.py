"""Computes the log-probabilities of a prompt's own tokens, in slices: a row of logits is wide."""

from collections.abc import Callable, Generator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.sampler import likeliest
from omlx_server.core.request import Logprobs

# The logits of a slice in f32 take at most so many bytes. What is computed from them on the way
# takes three times as much, so that all of it takes `_TIMES` as much.
_BYTES = 16 << 20
_TIMES = 4


def _nobody(tokens: Sequence[int]) -> None:
    """No other rank computes the model."""


def score_prompt(
    model: nn.Module,
    vocab: int,
    tokens: Sequence[int],
    top: int,
    forward: Callable[..., mx.array] | None = None,
    tell: Callable[[Sequence[int]], None] = _nobody,
) -> Generator[None, None, list[Logprobs]]:
    """Return, for each token but the first, its log-probability and the `top` likeliest ones there,
    from raw logits. `forward` replaces the model; `tell` receives the tokens before each forward.
    Waits."""
    caches = cache_ops.new_caches(model)
    rows = slice_rows(vocab)
    found: list[Logprobs] = []
    for start in range(0, len(tokens) - 1, rows):
        stop = min(start + rows, len(tokens) - 1)
        tell(tokens[start:stop])
        found += _score(forward or model, caches, tokens[start : stop + 1], top)
        yield
    return found


def launch_slice(model: nn.Module, caches: Caches, tokens: Sequence[int]) -> None:
    """Launch another rank's share of a slice's forward."""
    device.launch(model(mx.array([list(tokens)]), cache=caches))
    cache_ops.evaluate(caches, wait=False)


def slice_rows(vocab: int) -> int:
    """Return the number of tokens in a slice, at most a chunk, whose memory was probed."""
    return max(1, min(device_policy.current().chunk, _BYTES // (4 * vocab)))


def logits_bytes(vocab: int, rows: int) -> int:
    """Return the most bytes that the logits of `rows` tokens, and what is computed from them,
    take."""
    return _TIMES * 4 * vocab * rows


def _score(
    model: Callable[..., mx.array], caches: Caches, tokens: Sequence[int], top: int
) -> list[Logprobs]:
    """Feed all tokens but the last, and return the entries of all but the first. Waits."""
    logits = model(mx.array([list(tokens[:-1])]), cache=caches)[0].astype(mx.float32)
    norm = mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logits, mx.array(list(tokens[1:]))[:, None], axis=-1) - norm
    own = _flat(chosen)  # computed first, since both this and `_likeliest` copy the logits
    entries = _likeliest(logits, norm, top) if top else [()] * len(own)
    cache_ops.evaluate(caches, wait=True)
    return [Logprobs(*entry) for entry in zip(own, entries, strict=True)]


def _likeliest(logits: mx.array, norm: mx.array, top: int) -> list[tuple[tuple[int, float], ...]]:
    ids, values = likeliest(logits, norm, min(top, logits.shape[-1]))
    rows = zip(_rows(ids), _rows(values), strict=True)
    return [tuple(zip(its_ids, its_values, strict=True)) for its_ids, its_values in rows]


def _flat(array: mx.array) -> list[float]:
    numbers: list[float] = array.reshape(-1).tolist()  # type: ignore[assignment]
    return numbers


def _rows(array: mx.array) -> list[list[Any]]:
    rows: list[list[Any]] = array.tolist()  # type: ignore[assignment]
    return rows
