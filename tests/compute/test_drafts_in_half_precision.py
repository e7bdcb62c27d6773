"""In half precision a forward over several tokens rounds otherwise than one over a single token.
Where an answer differs for that with drafts, the tokens at its first difference were as likely."""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.arrays import plain
from tests.compute.drive import LIMITS, Drive, sampling
from tests.compute.warm_runs import tokens
from tests.sweeps import sweep
from tests.tiny_models import load_tiny

pytestmark = pytest.mark.usefixtures("either_order")

BLOCK = 16
OUT = 40
PROMPTS = [[*tokens(("head", n), 5 + n), *tokens(("piece", n), 7) * 4] for n in range(8)]


def answers(drive: Drive) -> list[list[int]]:
    for number, prompt in enumerate(PROMPTS):
        drive.add(f"r{number}", prompt, sampling(OUT))
        drive.step()
    drive.finish()
    return [drive.answers[f"r{number}/0"] for number in range(len(PROMPTS))]


def spread(model: nn.Module, text: Sequence[int]) -> tuple[mx.array, float]:
    """The scores [V] behind a text, one token at a time, and how much they are changed at most when
    all of it is computed at once."""
    cache = make_prompt_cache(model)
    for token in text:
        alone = model(mx.array([[token]]), cache=cache)[0, -1]
        mx.eval(alone)
    whole = model(mx.array([text]), cache=make_prompt_cache(model))[0, -1]
    scores = alone.astype(mx.float32)
    return scores, float(plain(mx.abs(scores - whole.astype(mx.float32)).max()))


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    sweep(["llama", "gemma3_text", "qwen3_5"], [mx.bfloat16, mx.float16]),
    ids=str,
)
def test_an_answer_differs_at_a_tie_only(architecture: str, dtype: mx.Dtype) -> None:
    loaded = load_tiny(architecture)
    loaded.model.set_dtype(dtype)
    drafted = answers(Drive(loaded, LIMITS, BLOCK))
    plainly = answers(Drive(loaded, replace(LIMITS, speculation="off"), BLOCK))
    for prompt, mine, theirs in zip(PROMPTS, drafted, plainly, strict=True):
        pairs = enumerate(zip(mine, theirs, strict=True))
        at = next((at for at, (one, other) in pairs if one != other), None)
        if at is None:
            continue
        scores, change = spread(loaded.model, [*prompt, *mine[:at]])
        gap = abs(float(plain(scores[mine[at]] - scores[theirs[at]])))
        assert gap <= 2 * change
