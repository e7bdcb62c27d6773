"""Logits that are no numbers: the row ends with an error of its own instead of token 0 ("!!!!"),
the blocks that may be the cause go from both tiers, and nobody else notices."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.runner import ModelRunner
from omlx_server.core.request import NOT_FINITE, FinishReason
from omlx_server.core.work import finish
from omlx_server.errors import LoadFailed
from tests.compute.cold_cache import open_tier
from tests.compute.drive import Drive, sampling
from tests.compute.oracle import is_greedy
from tests.compute.warm_runs import LIMITS, ONE_OF_EACH_KIND, tiny, tokens
from tests.tiny_models import load_tiny

SIZE = 8
PROMPT = tokens("prompt", 37)
OTHER = tokens("other", 29)
architectures = pytest.mark.parametrize("architecture", ONE_OF_EACH_KIND)


class Planted:
    """A model whose logits are NaN where the newest of its tokens is `bad`."""

    def __init__(self, model: Any, bad: int) -> None:
        self._model, self._bad = model, bad

    def __call__(self, inputs: mx.array, cache: Any = None, **options: Any) -> mx.array:
        logits = self._model(inputs, cache=cache, **options)
        return mx.where((inputs == self._bad)[..., None], mx.nan, logits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def plant(drive: Drive, bad: int) -> Any:
    """Plant NaN behind this token. Returns the right model."""
    batch: Any = drive.runner._batch
    model, batch._target = batch._target, Planted(batch._target, bad)
    return model


def answers_right(drive: Drive, name: str, prompt: Sequence[int]) -> bool:
    return is_greedy(drive.loaded.model, prompt, drive.answers[f"{name}/0"])


def spoil(drive: Drive, number: int) -> None:
    """Make the numbers of the hot tier's payload NaN."""
    id = sorted(drive.hot)[number]
    payload = drive.hot[id]
    assert payload.segment is None and payload.buffers
    nothing = tuple(mx.full(buffer.shape, mx.nan, buffer.dtype) for buffer in payload.buffers)
    drive.hot[id] = replace(payload, buffers=nothing)


@architectures
def test_a_row_ends_alone_and_its_prompt_is_right_again(architecture: str) -> None:
    loaded = tiny(architecture)
    drive = Drive(loaded, LIMITS, SIZE)
    drive.add("bad", PROMPT, sampling(12))
    drive.finish()
    right = drive.answers["bad/0"]
    bad = Drive(loaded, LIMITS, SIZE)
    plant(bad, right[3])
    bad.add("bad", PROMPT, sampling(12))
    bad.add("other", OTHER, sampling(20))
    bad.finish()
    assert bad.ends["bad/0"] is FinishReason.MODEL_ERROR
    assert NOT_FINITE not in bad.answers["bad/0"]
    assert bad.answers["bad/0"] == right[: right.index(right[3]) + 1]
    if right[3] not in bad.answers["other/0"]:
        assert bad.ends["other/0"] is FinishReason.LENGTH and answers_right(bad, "other", OTHER)


def test_a_model_of_nan_is_not_loaded() -> None:
    loaded = load_tiny("llama")
    head = loaded.model.model.embed_tokens
    head.weight = mx.where(mx.arange(head.weight.shape[0])[:, None] == 7, mx.nan, head.weight)
    with pytest.raises(LoadFailed, match="not finite"):
        finish(ModelRunner(loaded).warming())


@architectures
def test_a_block_of_nan_costs_one_answer(architecture: str) -> None:
    drive = Drive(tiny(architecture), LIMITS, SIZE)
    drive.answer("first", PROMPT, 4)
    spoil(drive, 0)
    drive.add("again", PROMPT, sampling(8))
    drive.add("other", OTHER, sampling(8))
    drive.finish()
    assert drive.ends["again/0"] is FinishReason.MODEL_ERROR
    assert answers_right(drive, "other", OTHER)
    drive.answer("healed", PROMPT, 8)
    assert drive.admitted["healed"].cached == 0
    assert drive.ends["healed/0"] is FinishReason.LENGTH and answers_right(drive, "healed", PROMPT)
    drive.answer("warm", PROMPT, 8)
    assert drive.admitted["warm"].cached and answers_right(drive, "warm", PROMPT)


@architectures
def test_a_block_of_nan_on_the_disk_costs_one_answer(architecture: str, tmp_path: Path) -> None:
    cold = open_tier(tmp_path)
    drive = Drive(tiny(architecture), LIMITS, SIZE, cold=cold)
    drive.answer("first", PROMPT, 4)
    spoil(drive, 0)
    finish(drive.instance.tiers.write_before_close(5))
    cold.close(5)
    cold = open_tier(tmp_path)
    drive = Drive(tiny(architecture), LIMITS, SIZE, cold=cold)
    drive.add("again", PROMPT, sampling(8))
    drive.finish()
    assert drive.ends["again/0"] is FinishReason.MODEL_ERROR
    drive.instance.recall()
    cold.close(5)
    cold = open_tier(tmp_path)  # its files are gone, too
    drive = Drive(tiny(architecture), LIMITS, SIZE, cold=cold)
    drive.answer("healed", PROMPT, 8)
    assert drive.admitted["healed"].cached == 0 and answers_right(drive, "healed", PROMPT)
    cold.close(5)


def test_what_was_right_before_stays() -> None:
    """Finite logits prove the caches before them: only what came later goes."""
    drive = Drive(tiny("llama"), LIMITS, SIZE)
    right = drive.answer("first", PROMPT, 30)
    drive.instance.reset_cache()
    late = next(n for n in range(20, 30) if right[n] not in right[:n])
    plant(drive, right[late])
    drive.add("late", PROMPT, sampling(30))
    drive.finish()
    assert drive.ends["late/0"] is FinishReason.MODEL_ERROR
    kept = [block.stop for block in drive.instance.cache.index.blocks()]
    assert max(kept) in range(len(PROMPT), len(PROMPT) + late + 1)


@pytest.mark.parametrize("prompt_length", [5, 16])
@architectures
def test_nothing_wrong_is_kept_wherever_it_begins(architecture: str, prompt_length: int) -> None:
    """What goes on with the same tokens afterwards is right, whatever the cache has of them."""
    loaded, prompt = tiny(architecture), PROMPT[:prompt_length]
    right = Drive(loaded, LIMITS).answer("right", prompt, 20)
    firsts = [n for n in range(19) if right[n] not in (*prompt, *right[:n])]
    for late in firsts:
        drive = Drive(loaded, LIMITS, SIZE)
        target = plant(drive, right[late])
        drive.add("bad", prompt, sampling(20))
        drive.finish()
        assert drive.ends["bad/0"] is FinishReason.MODEL_ERROR
        drive.runner._batch._target = target
        longer = (*prompt, *right[: late + 1], 3, 4)
        drive.answer("on", longer, 6)
        assert drive.ends["on/0"] is FinishReason.LENGTH and answers_right(drive, "on", longer)
