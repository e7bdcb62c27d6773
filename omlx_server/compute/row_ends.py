"""Tests whether a model's recurrent layers stop at the end of each right-padded row. Several of
mlx-lm's do not."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.core.crash import guarded
from omlx_server.core.speculation.verifies import Verifies

_PROMPTS = ([1, 2, 3, 0, 2], [3, 1, 1, 2, 0])
# What each row is fed at a time: one may get nothing.
_FED: Sequence[tuple[list[int], list[int]]] = (
    ([1, 2, 3], [2]),
    ([2, 1], []),
    ([3], [1, 0, 2]),
    ([1], [3]),
)
_FLOAT32, _HALF = 1e-3, 5e-2
"""By how much logits may differ, as a share of the largest."""


def verifies_drafts(model: nn.Module) -> Verifies:
    fresh = cache_ops.new_caches(model)
    return cache_ops.verifies(fresh, stops_at_row_ends=stops_at_row_ends(model))


def stops_at_row_ends(model: nn.Module) -> bool:
    """Return whether rows continue after a padded or empty forward as they would alone. False
    without recurrent layers, where rows can't share a batch, and where the test raises."""
    solo = cache_ops.new_caches(model)
    if not cache_ops.is_recurrent(solo) or cache_ops.why_alone(model):
        return False
    if not cache_ops.cuts_rows_apart(solo):
        return False
    return guarded(_goes_on_as_alone, model) is True


def _goes_on_as_alone(model: nn.Module) -> bool:
    together = _together(model)
    alone = [
        _alone(model, prompt, [token for fed in _FED for token in fed[row]])
        for row, prompt in enumerate(_PROMPTS)
    ]
    slack = _FLOAT32 if together.dtype == mx.float32 else _HALF
    difference = mx.abs(together - mx.concatenate(alone)).max()
    return bool((difference <= slack * mx.abs(together).max()).item())


def _alone(model: nn.Module, prompt: Sequence[int], fed: Sequence[int]) -> mx.array:
    caches = cache_ops.new_caches(model)
    model(mx.array([prompt]), cache=caches)
    logits = mx.zeros(())
    for token in fed:
        logits = model(mx.array([[token]]), cache=caches)[:, -1]
    return logits


def _together(model: nn.Module) -> mx.array:
    """Return the logits [R, V] of all rows after padded forwards."""
    rows: list[Caches] = []
    for prompt in _PROMPTS:
        rows.append(cache_ops.new_caches(model))
        model(mx.array([prompt]), cache=rows[-1])
    batch, logits = cache_ops.merge(rows), mx.zeros(())
    for fed in _FED:
        tokens, lengths = cache_ops.padded(fed), [len(row) for row in fed]
        logits = cache_ops.forward_decoding(model, tokens, lengths, batch)
        padding = [max(lengths) - length for length in lengths]
        if any(padding):
            cache_ops.cut_back(batch, padding)
    return logits[:, -1]
