"""Jobs on the mlx thread that prefill prompts in caches of their own."""

from collections.abc import Generator, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

from omlx_server.compute import score
from omlx_server.compute.embed import yes_no
from omlx_server.compute.embed.batch import BatchResult
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.core.adapters import Adapter
from omlx_server.core.memory.room import within
from omlx_server.core.memory.shape import PrefillShape
from omlx_server.core.request import Logprobs
from omlx_server.core.work import Work
from omlx_server.engine.memory.reservations import JobRoom
from omlx_server.engine.model_instance import ModelInstance

A = TypeVar("A")
Y = TypeVar("Y")

_job_numbers = count()  # by which other ranks tell jobs apart


def score_prompt(
    instance: ModelInstance, tokens: Sequence[int], top: int, adapter: Adapter | None = None
) -> Work[list[Logprobs]]:
    """Return log-probabilities of a prompt's tokens but the first. The adapter must stay loaded."""
    vocab = instance.runner.loaded.dims.vocab
    work = _score_on_all_ranks(instance.runner.loaded, tokens, top, adapter)
    rows = min(len(tokens), score.slice_rows(vocab))
    return _within_memory(instance, work, len(tokens), 1, rows, score.logits_bytes(vocab, rows))


def _score_on_all_ranks(
    loaded: LoadedModel, tokens: Sequence[int], top: int, adapter: Adapter | None
) -> Work[list[Logprobs]]:
    model, vocab = loaded.target, loaded.dims.vocab
    forward = loaded.adapters.adapted(model, [adapter])
    tell_ranks = partial(loaded.ranks.score, next(_job_numbers))
    try:
        return (yield from score.score_prompt(model, vocab, tokens, top, forward, tell_ranks))
    finally:
        tell_ranks(())  # the job has ended


def judge_prompts(
    instance: ModelInstance, prompts: Sequence[Sequence[int]], *, yes: int, no: int
) -> Generator[BatchResult | None, None, None]:
    """Return how likely the model answers each prompt with yes rather than no."""
    loaded, chunk = instance.runner.loaded, device_policy.current().chunk
    work = yes_no.score(loaded.target, prompts, yes=yes, no=no, slice_tokens=chunk)
    longest, logits_bytes = max(map(len, prompts), default=0), score.logits_bytes
    # Two caches: the common prefix of all prompts, and a copy for each prompt.
    return _within_memory(instance, work, longest, 2, chunk, logits_bytes(loaded.dims.vocab, 1))


def _within_memory(
    instance: ModelInstance,
    work: Generator[Y, None, A],
    tokens: int,
    caches: int,
    chunk: int,
    logits_bytes: int,
) -> Generator[Y | None, None, A]:
    """Set memory aside, then do the work: prompts of `tokens`, `chunk` tokens at a time."""
    if instance.watch is None:
        return work
    planner, rows = instance.watch.planner, max(1, min(chunk, tokens))
    step_bytes = planner.prefill(PrefillShape(1, rows, max(0, tokens - rows)))
    nbytes = caches * planner.live([tokens]) + step_bytes + logits_bytes
    return within(JobRoom(instance.watch.share), nbytes, work)
