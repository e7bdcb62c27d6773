"""Computes the log-probabilities of a prompt's own tokens, in slices."""

from collections.abc import Callable, Generator, Sequence

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.compute.hardware import device, device_policy
from omlx_server.compute.sampler import likeliest
from omlx_server.core.request import Logprobs

_SLICE_BYTES = 16 << 20  # the logits of a slice in float32
_COPIES = 4  # arrays of that size live at once: logits, and what is computed from them


def score_prompt(
    model: nn.Module,
    vocab: int,
    tokens: Sequence[int],
    top: int,
    forward: Callable[..., mx.array] | None = None,
    tell: Callable[[Sequence[int]], None] = lambda tokens: None,
) -> Generator[None, None, list[Logprobs]]:
    """Return, for each token but the first, its log-probability and the `top` likeliest ones.
    `tell` receives the tokens before each forward. Waits."""
    caches = cache_ops.new_caches(model)
    size = slice_rows(vocab)
    entries: list[Logprobs] = []
    for start in range(0, len(tokens) - 1, size):
        stop = min(start + size, len(tokens) - 1)
        tell(tokens[start:stop])
        entries += _score_slice(forward or model, caches, tokens[start : stop + 1], top)
        yield
    return entries


def launch_slice(model: nn.Module, caches: Caches, tokens: Sequence[int]) -> None:
    """Run a slice on a rank that scores nothing."""
    device.launch(model(mx.array([list(tokens)]), cache=caches))
    cache_ops.evaluate(caches, wait=False)


def slice_rows(vocab: int) -> int:
    """Return the number of tokens that are scored at a time."""
    return max(1, min(device_policy.current().chunk, _SLICE_BYTES // (4 * vocab)))


def logits_bytes(vocab: int, rows: int) -> int:
    """Return the most bytes for the logits of `rows` tokens and their derivatives."""
    return _COPIES * 4 * vocab * rows


def _score_slice(
    model: Callable[..., mx.array], caches: Caches, tokens: Sequence[int], top: int
) -> list[Logprobs]:
    logits = model(mx.array([list(tokens[:-1])]), cache=caches)[0].astype(mx.float32)
    norm = mx.logsumexp(logits, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(logits, mx.array(list(tokens[1:]))[:, None], axis=-1) - norm
    # On the host before `likeliest` is computed, since both copy the logits.
    logprobs: list[float] = device.to_host(chosen[:, 0])
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(logprobs)
    if top:
        ids, likely = map(device.to_host, likeliest(logits, norm, min(top, logits.shape[-1])))
        tops = [tuple(zip(*row, strict=True)) for row in zip(ids, likely, strict=True)]
    cache_ops.evaluate(caches, wait=True)
    return [Logprobs(*entry) for entry in zip(logprobs, tops, strict=True)]
