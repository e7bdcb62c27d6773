"""Scores of a causal model do not hang on chunks or on what prompts share."""

import mlx.core as mx
import numpy as np
import pytest

from omlx_server.compute.embed.yes_no import score
from tests.compute.embed.loading import collect
from tests.tiny_models import make_model

YES, NO = 7, 8
SHARED = [11, 12, 13, 14, 15, 16, 17]


def scores(model: object, prompts: list[list[int]], slice_tokens: int | None = None) -> list[float]:
    work = score(model, prompts, yes=YES, no=NO, slice_tokens=slice_tokens)  # type: ignore[arg-type]
    return [float(np.array(value)) for value in collect(work, len(prompts))]


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3_text", "qwen3_5", "lfm2"])
def test_the_same_as_one_plain_forward(architecture: str) -> None:
    model, _ = make_model(architecture)
    prompts = [[*SHARED, 21, 22, 23], [*SHARED, 31], [*SHARED, 21, 22, 23, 24, 25, 26, 9], SHARED]
    expected = []
    for prompt in prompts:
        logits = model(mx.array([prompt]))[0, -1].astype(mx.float32)
        expected.append(float(np.array(mx.softmax(logits[mx.array([YES, NO])])[0])))
    assert max(expected) - min(expected) > 0.01
    for slice_tokens in (None, 1, 3):
        assert np.allclose(scores(model, prompts, slice_tokens), expected, atol=1e-5)


def test_edges() -> None:
    model, _ = make_model("qwen3")
    assert scores(model, []) == []
    alone = scores(model, [[5]])
    assert scores(model, [[5], [5]]) == pytest.approx([*alone, *alone], abs=1e-6)
    assert scores(model, [[5], [6, 5]])[0] == pytest.approx(alone[0], abs=1e-6)


def test_the_shared_part_is_read_once() -> None:
    model, _ = make_model("qwen3")
    turns = list(
        score(model, [[*SHARED, i] for i in range(20, 30)], yes=YES, no=NO, slice_tokens=7)
    )
    assert sum(turn is None for turn in turns) == 1
