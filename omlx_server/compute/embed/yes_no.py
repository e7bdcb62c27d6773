"""Relevance from a model that writes: it is asked whether a document fits, and what counts is how
likely it begins with "yes" rather than "no". Owned by the mlx thread; speaks token ids only.

All prompts begin alike (the question, the query): that part is prefilled once.
"""

import copy
from collections.abc import Generator, Iterator, Sequence

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.caches import Caches, evaluate, new_caches
from omlx_server.compute.embed.batch import Part
from omlx_server.compute.hardware import device


def score(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    yes: int,
    no: int,
    slice_tokens: int | None = None,
) -> Generator[Part | None, None, None]:
    """Of each prompt (one token at least) p(yes) / (p(yes) + p(no)) for the token after it.

    `model` is any of mlx-lm's: its caches are its own, so nothing is padded.
    """
    chunk = slice_tokens or device.prefill_chunk_tokens()
    prefix = _shared([list(prompt[:-1]) for prompt in prompts])
    shared = new_caches(model)
    yield from _prefill(model, prefix, shared, chunk)
    for index, prompt in enumerate(prompts):
        caches = copy.deepcopy(shared)
        yield from _prefill(model, prompt[len(prefix) : -1], caches, chunk)
        logits = model(mx.array([prompt[-1:]]), cache=caches)[0, -1]
        both = mx.stack([logits[yes], logits[no]]).astype(mx.float32)
        value = mx.softmax(both)[:1]
        mx.eval(value)
        yield Part((index,), value)


def _shared(prompts: list[list[int]]) -> list[int]:
    """What all begin with."""
    if not prompts:
        return []
    # All that sorts between the first and the last begins as both do.
    first, last = min(prompts), max(prompts)
    ends = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(ends, min(len(first), len(last)))]


def _prefill(model: nn.Module, ids: Sequence[int], caches: Caches, chunk: int) -> Iterator[None]:
    """Into the caches, a chunk a turn. The head's logits are never asked for, so never computed."""
    for start in range(0, len(ids), chunk):
        model(mx.array([ids[start : start + chunk]]), cache=caches)
        evaluate(caches, wait=True)
        yield
