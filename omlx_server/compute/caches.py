"""A sequence's caches as the model makes them, and how rows of several sequences become one batch.

    solo   list of the model's own cache objects, or of quantised ones, one sequence, no padding
    batch  list of their batch forms, rows left-padded to one width

A model whose caches have no batch form (llama4), or that `architectures` names, runs one sequence
at a time.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import cache as mlx_lm_cache

from omlx_server.compute import architectures
from omlx_server.compute.inclusive_ring import InclusiveRing
from omlx_server.compute.kv.caches import PackedKVCache

# mlx-lm's cache classes share no typed base; what we need of them is written down here.
Cache = Any
Caches = list[Cache]


def new_caches(model: nn.Module) -> Caches:
    """Fresh, empty caches for one sequence. A model may have fewer caches than layers."""
    return architectures.adapted(model, mlx_lm_cache.make_prompt_cache(model))


def why_alone(model: nn.Module) -> str:
    """Why rows of this model can't run in one batch; empty where they can."""
    if not can_batch(new_caches(model)):
        return "its caches have no batch form"
    return architectures.why_alone(model)


def can_batch(caches: Caches) -> bool:
    """Whether all of these (solo) caches have a batch form."""
    return all(_has_batch_form(cache) for cache in caches)


def _has_batch_form(cache: Cache) -> bool:
    if isinstance(cache, mlx_lm_cache.CacheList):
        return can_batch(list(cache.caches))
    if isinstance(cache, mlx_lm_cache.RotatingKVCache):
        return bool(cache.keep == 0)  # the batch form forgets `keep`
    return isinstance(cache, mlx_lm_cache.KVCache | mlx_lm_cache.ArraysCache | PackedKVCache)


def can_pad(caches: Caches) -> bool:
    """Whether rows of a batch may be padded on the right in a prefill.

    Attention masks the padding out. A recurrent layer has to stop its state at each row's own end,
    and several of mlx-lm's do not: nemotron_h, jamba, olmo_hybrid, mamba, rwkv7.
    """
    for cache in caches:
        if isinstance(cache, mlx_lm_cache.CacheList):
            if not can_pad(list(cache.caches)):
                return False
        elif isinstance(cache, mlx_lm_cache.ArraysCache):
            return False
    return True


def can_group(caches: Caches) -> bool:
    """Whether chunks of several prompts may run in one forward."""
    return not any(isinstance(cache, InclusiveRing) for cache in caches)


def is_recurrent(caches: Caches) -> bool:
    """Whether a layer keeps a state. In a batch with others, a row that has read nothing yet would
    begin with zeros, which is not what every model begins with (recurrent_gemma)."""
    return any(
        is_recurrent(list(cache.caches))
        if isinstance(cache, mlx_lm_cache.CacheList)
        else isinstance(cache, mlx_lm_cache.ArraysCache)
        for cache in caches
    )


def begin_decode(caches: Caches) -> None:
    """Tell solo caches that what comes is decoded, where they differ by that."""
    for cache in caches:
        if isinstance(cache, InclusiveRing):
            cache.begin_decode()


def can_feed_unevenly(caches: Caches) -> bool:
    """Whether rows of a running batch can be fed different numbers of tokens. mlx-lm's rings answer
    wrongly once they have wrapped."""
    return can_pad(caches) and not any(_has_ring(cache) for cache in caches)


def _has_ring(cache: Cache) -> bool:
    if isinstance(cache, mlx_lm_cache.CacheList):
        return any(_has_ring(member) for member in cache.caches)
    return isinstance(cache, mlx_lm_cache.RotatingKVCache)


def merge(rows: Sequence[Caches]) -> Caches:
    """Solo caches of several sequences as one batch. Copies every row; the rows stay usable."""
    return [members[0].merge(list(members)) for members in zip(*rows, strict=True)]


def extend(batch: Caches, other: Caches) -> None:
    """Append the rows of another batch. Copies both."""
    for mine, theirs in zip(batch, other, strict=True):
        mine.extend(theirs)


def keep_rows(batch: Caches, rows: Sequence[int]) -> None:
    """Keep only these rows of a batch, in this order. Copies what is kept."""
    for cache in batch:
        cache.filter(list(rows))


def forward_padded(
    model: nn.Module, tokens: mx.array, lengths: Sequence[int], caches: Caches
) -> mx.array:
    """Logits [B, T, V] of rows of so many tokens in int [B, T]; what is behind those is padding."""
    width = tokens.shape[1]
    padding = [width - length for length in lengths]
    if not any(padding):
        logits: mx.array = model(tokens, cache=caches)
        return logits
    for cache in caches:
        cache.prepare(lengths=list(lengths), right_padding=padding)
    logits = model(tokens, cache=caches)
    for cache in caches:
        _finalize(cache)
    return logits


def _finalize(cache: Cache) -> None:
    """Move the rows of a batch behind their padding. mlx-lm fails where a layer without attention
    has left its cache empty (nemotron-nas)."""
    if isinstance(cache, mlx_lm_cache.BatchKVCache) and cache.keys is None:
        cache._right_padding = None
    else:
        cache.finalize()


def nbytes(caches: Caches) -> int:
    """What they hold, room for more tokens included."""
    return sum(cache.nbytes for cache in caches)


def settle(caches: Caches) -> None:
    """Compute rearranged caches array by array: all that a layer needs on the way would be there at
    once, since memory is taken when work is launched and given back when it is done."""
    for cache in caches:
        for array in dict(tree_flatten(cache.state)).values():
            mx.eval(array)


def evaluate(caches: Caches, *, wait: bool) -> None:
    """Compute what the caches hold; the logits of a prefill are never asked for, so never made."""
    state = [cache.state for cache in caches]
    if wait:
        mx.eval(state)
    else:
        mx.async_eval(state)
