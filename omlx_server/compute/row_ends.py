"""Tests whether recurrent layers stop at the end of right-padded rows: several don't."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute import caches as cache_ops
from omlx_server.compute.caches import Caches
from omlx_server.core.crash import guarded
from omlx_server.core.speculation.methods import DraftVerification

_PROMPTS = ([1, 2, 3, 0, 2], [3, 1, 1, 2, 0])
# The tokens of each row in each forward after the prompts.
_FED_TOKENS: Sequence[tuple[list[int], list[int]]] = (
    ([1, 2, 3], [2]),
    ([2, 1], []),
    ([3], [1, 0, 2]),
    ([1], [3]),
)
_TOLERANCE_FLOAT32, _TOLERANCE_HALF = 1e-3, 5e-2  # tolerances, as shares of the largest logit


def verifies_drafts(model: nn.Module) -> DraftVerification:
    fresh = cache_ops.new_caches(model)
    return cache_ops.draft_verification(fresh, stops_at_row_ends=stops_at_row_ends(model))


def stops_at_row_ends(model: nn.Module) -> bool:
    """Return whether rows continue after a padded or empty forward as they would alone."""
    solo = cache_ops.new_caches(model)
    if not cache_ops.is_recurrent(solo) or cache_ops.why_alone(model):
        return False
    return cache_ops.can_take_out_by_row(solo) and guarded(_matches_rows_alone, model) is True


def _matches_rows_alone(model: nn.Module) -> bool:
    batched = _batched_logits(model)
    alone = [
        _solo_logits(model, prompt, [token for forward in _FED_TOKENS for token in forward[row]])
        for row, prompt in enumerate(_PROMPTS)
    ]
    tolerance = _TOLERANCE_FLOAT32 if batched.dtype == mx.float32 else _TOLERANCE_HALF
    difference = mx.abs(batched - mx.concatenate(alone)).max()
    return bool((difference <= tolerance * mx.abs(batched).max()).item())


def _solo_logits(model: nn.Module, prompt: Sequence[int], fed: Sequence[int]) -> mx.array:
    caches = cache_ops.new_caches(model)
    model(mx.array([prompt]), cache=caches)
    logits = mx.zeros(())
    for token in fed:
        logits = model(mx.array([[token]]), cache=caches)[:, -1]
    return logits


def _batched_logits(model: nn.Module) -> mx.array:
    rows: list[Caches] = []
    for prompt in _PROMPTS:
        rows.append(cache_ops.new_caches(model))
        model(mx.array([prompt]), cache=rows[-1])
    batch, logits = cache_ops.merge(rows), mx.zeros(())
    for rows_tokens in _FED_TOKENS:
        tokens, lengths = cache_ops.padded(rows_tokens), [len(row) for row in rows_tokens]
        logits = cache_ops.forward_decoding(model, tokens, lengths, batch)
        padding = [max(lengths) - length for length in lengths]
        if any(padding):
            cache_ops.take_out_drafts(batch, padding)
    return logits[:, -1]
