"""The naive form of the engine: one sequence, its own caches, one token after the other."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from tests.arrays import plain


def greedy(model: nn.Module, prompt: Sequence[int], count: int) -> list[int]:
    """The greedy answer of a model to a prompt, computed with mlx-lm's plain caches."""
    cache = make_prompt_cache(model)
    tokens = list(prompt)
    if len(prompt) > 1:
        model(mx.array([tokens[:-1]]), cache=cache)
        mx.eval([c.state for c in cache])
    last = tokens[-1]
    answer = []
    for _ in range(count):
        logits = model(mx.array([[last]]), cache=cache)[0, -1]
        last = plain(mx.argmax(logits))
        answer.append(last)
    return answer


def is_greedy(model: nn.Module, prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Whether `answer` is the greedy answer: one cold forward over all of it must choose each of
    its tokens. The same as `greedy(...) == answer`, by induction, and twenty times as fast."""
    tokens = mx.array([[*prompt, *answer[:-1]]])
    logits = model(tokens, cache=make_prompt_cache(model))[0, len(prompt) - 1 :]
    return bool(plain(mx.argmax(logits, axis=-1)) == list(answer))
