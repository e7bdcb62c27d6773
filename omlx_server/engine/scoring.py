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

_numbers = count()


def scored(
    instance: ModelInstance, tokens: Sequence[int], top: int, adapter: Adapter | None = None
) -> Work[list[Logprobs]]:
    """Return log-probabilities of a prompt's tokens but the first. The adapter must stay loaded."""
    vocab = instance.runner.loaded.dims.vocab
    work = _scored(instance.runner.loaded, tokens, top, adapter)
    rows = min(len(tokens), score.slice_rows(vocab))
    return _on_account(instance, work, len(tokens), 1, rows, score.logits_bytes(vocab, rows))


def _scored(
    loaded: LoadedModel, tokens: Sequence[int], top: int, adapter: Adapter | None
) -> Work[list[Logprobs]]:
    model, vocab, job = loaded.target, loaded.dims.vocab, next(_numbers)
    forward, tell = loaded.adapters.adapted(model, [adapter]), partial(loaded.ranks.score, job)
    try:
        return (yield from score.score_prompt(model, vocab, tokens, top, forward, tell))
    finally:
        tell(())


def judged(
    instance: ModelInstance, prompts: Sequence[Sequence[int]], *, yes: int, no: int
) -> Generator[BatchResult | None, None, None]:
    """Return how likely the model answers each prompt with yes rather than no."""
    loaded, chunk = instance.runner.loaded, device_policy.current().chunk
    work = yes_no.score(loaded.target, prompts, yes=yes, no=no, slice_tokens=chunk)
    longest = max(map(len, prompts), default=0)
    # Two caches: the common prefix of all prompts, and a copy for each prompt.
    return _on_account(instance, work, longest, 2, chunk, score.logits_bytes(loaded.dims.vocab, 1))


def _on_account(
    instance: ModelInstance,
    work: Generator[Y, None, A],
    tokens: int,
    caches: int,
    chunk: int,
    logits: int,
) -> Generator[Y | None, None, A]:
    if instance.watch is None:
        return work
    planner, chunk = instance.watch.planner, max(1, min(chunk, tokens))
    step = planner.prefill(PrefillShape(1, chunk, max(0, tokens - chunk)))
    needs = caches * planner.live([tokens]) + step + logits
    return within(JobRoom(instance.watch.share), needs, work)
