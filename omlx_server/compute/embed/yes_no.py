"""Relevance as a language model's probability of "yes" rather than "no". Mlx thread."""

import copy
from collections.abc import Generator, Iterator, Sequence

import mlx.core as mx
import mlx.nn as nn

from omlx_server.compute.caches import Caches, evaluate, new_caches
from omlx_server.compute.embed.batch import BatchResult
from omlx_server.compute.forward_parts import ForwardParts
from omlx_server.compute.hardware import device_policy


def score(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    yes: int,
    no: int,
    slice_tokens: int | None = None,
    parts: ForwardParts | None = None,
) -> Generator[BatchResult | None, None, None]:
    """Compute p(yes) / (p(yes) + p(no)) for the token after each prompt. Prompts run one by one
    in solo caches; their common prefix is prefilled once."""
    chunk, all_parts = slice_tokens or device_policy.current().chunk, parts or ForwardParts(model)

    def prefill(ids: Sequence[int], caches: Caches, first: int) -> Iterator[None]:
        for start in range(first, len(ids), chunk):
            tokens = ids[start : start + chunk]
            with all_parts.of_rows([(len(tokens), start)]):
                model(mx.array([tokens]), cache=caches)
            evaluate(caches, wait=True)
            yield

    prefix = _common_prefix([list(prompt[:-1]) for prompt in prompts])
    prefix_caches = new_caches(model)
    yield from prefill(prefix, prefix_caches, 0)
    for index, prompt in enumerate(prompts):
        caches = copy.deepcopy(prefix_caches)
        yield from prefill(prompt[:-1], caches, len(prefix))
        logits = model(mx.array([prompt[-1:]]), cache=caches)[0, -1]
        yes_and_no = mx.stack([logits[yes], logits[no]]).astype(mx.float32)
        probability = mx.softmax(yes_and_no)[:1]
        mx.eval(probability)
        yield BatchResult((index,), probability)


def _common_prefix(prompts: list[list[int]]) -> list[int]:
    if not prompts:
        return []
    # Prompts that sort between the first and the last share the prefix of these two.
    first, last = min(prompts), max(prompts)
    differences = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differences, min(len(first), len(last)))]
