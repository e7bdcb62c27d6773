"""Log-probabilities of a prompt: those of one whole forward, for little memory, slice by slice."""

from collections.abc import Generator
from typing import TypeVar

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from omlx_server.compute import score
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.score import score_prompt
from omlx_server.core.request import Logprobs
from tests.arrays import plain
from tests.compute.warm_runs import tiny, tokens
from tests.tiny_models import CONFIGS, VOCAB, load_tiny

A = TypeVar("A")


def done(work: Generator[None, None, A]) -> tuple[A, int]:
    """What it returns, and in how many slices."""
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, slices
        slices += 1


@pytest.mark.parametrize("architecture", CONFIGS)
def test_they_are_those_of_one_forward(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "_SLICE_BYTES", 7 * 4 * VOCAB)  # slices of seven rows
    model, prompt = tiny(architecture).model, tokens("score", 40)
    logits = model(mx.array([prompt]), cache=make_prompt_cache(model))[0]
    whole = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    found, slices = done(score_prompt(model, VOCAB, prompt, 3))
    assert slices == 6 and len(found) == 39
    for place, entry in enumerate(found):
        row = whole[place]
        assert entry.chosen == pytest.approx(plain(row[prompt[place + 1]]), abs=1e-3)
        values = [value for _, value in entry.top]
        assert values == sorted(values, reverse=True) and len(values) == 3
        for id, value in entry.top:
            assert value == pytest.approx(plain(row[id]), abs=1e-3)
        assert values[0] == pytest.approx(plain(row.max()), abs=1e-3)


def test_no_more_is_read_at_a_time_than_was_probed() -> None:
    assert score.slice_rows(VOCAB) == device_policy.current().chunk
    assert score.slice_rows(1 << 30) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_the_shortest_prompts(count: int) -> None:
    found, _ = done(score_prompt(tiny("llama").model, VOCAB, tokens("short", count), 0))
    assert len(found) == count - 1
    assert all(isinstance(entry, Logprobs) and entry.top == () for entry in found)


def test_a_long_prompt_and_a_large_vocabulary_take_little_memory() -> None:
    vocab = 49_152
    model = load_tiny("llama", vocab_size=vocab).model
    prompt = [token * 200 for token in tokens("long", 2_000)]
    mx.eval(model.parameters())
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    found, _ = done(score_prompt(model, vocab, prompt, 5))
    assert len(found) == 1_999
    assert mx.get_peak_memory() - before < 64 << 20  # all logits are 393 MB
