"""When two answers count as the same."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute.bare import decode_rate, gap_after, rate_since_all_began
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.doctor.selftest.verdict import SelftestVerdict, verdict
from tests.arrays import plain
from tests.compute.oracle import greedy
from tests.tiny_models import load_tiny

PROMPT = list(range(1, 20))


@pytest.fixture
def loaded() -> LoadedModel:
    return load_tiny("llama", tie_word_embeddings=False)


def logits_after(model: nn.Module, tokens: list[int]) -> mx.array:
    return model(mx.array([tokens]))[0, -1]  # type: ignore[no-any-return]


def test_the_gap_of_two_tokens_is_that_to_the_likeliest(loaded: LoadedModel) -> None:
    logits = logits_after(loaded.model, PROMPT)
    first, _, third = plain(mx.argsort(-logits))[:3]
    expected = plain(logits[first] - logits[third])
    assert gap_after(loaded, PROMPT, first, third).logits == pytest.approx(expected, abs=1e-4)
    assert gap_after(loaded, PROMPT, third, third).logits == pytest.approx(expected, abs=1e-4)
    assert not gap_after(loaded, PROMPT, first, third).is_tie


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_tokens_that_are_as_likely_as_each_other_are_a_tie(
    loaded: LoadedModel, dtype: mx.Dtype
) -> None:
    loaded.model.set_dtype(dtype)
    answer = greedy(loaded.model, PROMPT, 4)
    other = next(id for id in range(100) if id not in answer)
    head = loaded.model.lm_head.weight
    head[other] = head[answer[2]]
    loaded.model.lm_head.weight = head
    tied = [*answer[:2], other, 0]
    assert verdict(loaded, PROMPT, answer, answer) is SelftestVerdict.SAME
    assert verdict(loaded, PROMPT, answer, tied) is SelftestVerdict.TIE
    assert verdict(loaded, PROMPT, answer, [other, *answer[1:]]) is SelftestVerdict.WRONG
    assert verdict(loaded, PROMPT, answer, answer[:3]) is SelftestVerdict.WRONG


def test_a_rate_counts_what_came_while_all_answers_ran() -> None:
    assert rate_since_all_began([[0.0, 1.0, 2.0, 3.0], [1.0, 2.0]]) == 2.0
    assert rate_since_all_began([[1.0]]) == 0.0


def test_the_bare_loops_run_on_the_loaded_model_and_leave_its_caches(loaded: LoadedModel) -> None:
    before = vars(loaded.model).get("make_cache")
    assert decode_rate(loaded, [PROMPT], 4) > 0
    assert decode_rate(loaded, [PROMPT, PROMPT[3:]], 4) > 0
    assert before is not None
    assert vars(loaded.model)["make_cache"] is before
