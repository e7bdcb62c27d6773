"""Rows of one batch, each with its adapter or none: every row says what the model says that has its
adapter fused into its weights, alone and beside others, cold and from the cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute.model.loader import LoadedModel, load
from omlx_server.compute.model.pairing import paired
from omlx_server.core.adapters import Adapter
from omlx_server.core.speculation.methods import Mode
from omlx_server.core.work import finish
from omlx_server.models.bundled import starter
from omlx_server.models.catalogue import STARTER
from omlx_server.settings import Settings
from tests.adapters import ATTENTION, DENSE, fuse, save_adapter, wear
from tests.compute import cold_cache
from tests.compute.drive import LIMITS, Drive, sampling
from tests.compute.headed import headed
from tests.compute.kv.every_scheme import FOUR_BITS
from tests.compute.kv.models import quantised
from tests.compute.oracle import greedy
from tests.compute.vision.prompts import Told, picture, seeing, words
from tests.compute.warm_runs import tokens
from tests.tiny_models import load_tiny, make_model

pytestmark = pytest.mark.usefixtures("either_order")

BLOCK, ANSWER = 8, 18
PROMPT = [*tokens("shared", 27), *tokens("piece", 4) * 3]
RANKS = (4, 8, 4)
KEYS = {"deepseek_v3": ("self_attn.q_a_proj", "self_attn.o_proj"), "llama": DENSE}


def adapters_for(
    loaded: LoadedModel, directory: Path, keys: Sequence[str] = ATTENTION
) -> list[Adapter]:
    """Three adapters, of two ranks, loaded."""
    model = loaded.target
    made = [
        save_adapter(directory / f"a{number}", model, seed=number, rank=rank, keys=keys)
        for number, rank in enumerate(RANKS)
    ]
    for adapter in made:
        finish(loaded.adapters.loading(model, adapter))
    return made


def ask(drive: Drive, name: str, adapters: Sequence[Adapter | None]) -> dict[str, list[int]]:
    """The answers to one prompt with each of these adapters, all in one batch."""
    for adapter in adapters:
        drive.add(f"{name}-{name_of(adapter)}", PROMPT, sampling(ANSWER), adapter=adapter)
        drive.step()
    drive.finish()
    return {name_of(adapter): drive.answers[f"{name}-{name_of(adapter)}/0"] for adapter in adapters}


def name_of(adapter: Adapter | None) -> str:
    return adapter.name if adapter else "none"


def fused(model: nn.Module, adapter: Adapter | None, prompt: Sequence[int] = PROMPT) -> list[int]:
    """What a model says with an adapter fused into it by mlx-lm."""
    return greedy(fuse(wear(model, adapter.path)) if adapter else model, prompt, ANSWER)


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen3", "qwen3_moe", "qwen3_next", "deepseek_v3"]
)
def test_each_row_says_what_its_fused_model_says(architecture: str, tmp_path: Path) -> None:
    """All have the same prompt: a block of another adapter would be found, if its key were the
    same. A second round finds the blocks of the first."""
    loaded = load_tiny(architecture)
    adapters = [None, *adapters_for(loaded, tmp_path, KEYS.get(architecture, ATTENTION))]
    drive = Drive(loaded, block_size=BLOCK)
    cold = ask(drive, "cold", adapters)
    assert cold == {name_of(a): fused(make_model(architecture)[0], a) for a in adapters}
    assert len({tuple(answer) for answer in cold.values()}) > 2, "the adapters say the same"
    assert not any(found.cached for found in drive.admitted.values())
    assert ask(drive, "warm", adapters[::-1]) == cold
    assert all(drive.admitted[f"warm-{name}"].cached >= 2 * BLOCK for name in cold)


def test_short_prompts_of_different_adapters_are_prefilled_in_one_forward(tmp_path: Path) -> None:
    loaded = load_tiny("llama")
    adapters = [None, *adapters_for(loaded, tmp_path)]
    drive, prompts = Drive(loaded), {name_of(a): tokens(name_of(a), 12) for a in adapters}
    for adapter in adapters:
        name = name_of(adapter)
        drive.add(name, prompts[name], sampling(ANSWER), adapter=adapter)
    drive.finish()
    for adapter in adapters:
        name = name_of(adapter)
        assert drive.answers[f"{name}/0"] == fused(make_model("llama")[0], adapter, prompts[name])


def test_the_starter_says_what_it_says_with_an_adapter_fused_into_it(tmp_path: Path) -> None:
    loaded = load(starter.ensure(STARTER, Settings().models.dirs[0], variant="f32"))
    adapter = save_adapter(tmp_path / "a", loaded.model, keys=DENSE, layers=30)
    finish(loaded.adapters.loading(loaded.model, adapter))
    drive, prompt = Drive(loaded), list(range(1000, 1020))
    plain = drive.answer("plain", prompt, 5)
    drive.add("beside", prompt[:9], sampling(6))
    adapted = drive.answer("adapted", prompt, 5, adapter=adapter)
    assert adapted == greedy(fuse(wear(loaded.model, adapter.path)), prompt, 5) != plain


def test_a_quantised_model_says_what_mlx_lm_says_of_it(tmp_path: Path) -> None:
    def of_few_bits() -> nn.Module:
        model, _ = make_model("llama", num_key_value_heads=4)
        nn.quantize(model, group_size=32, bits=4)
        return model

    loaded = load_tiny("llama", num_key_value_heads=4)
    nn.quantize(loaded.model, group_size=32, bits=4)
    adapters = adapters_for(loaded, tmp_path, DENSE)
    said = ask(Drive(loaded, block_size=BLOCK), "r", adapters)
    assert said == {a.name: greedy(wear(of_few_bits(), a.path), PROMPT, ANSWER) for a in adapters}


@pytest.mark.parametrize("drafting", ["off", "draft"])
def test_a_draft_model_changes_no_answer(drafting: Mode, tmp_path: Path) -> None:
    pair = paired(load_tiny("qwen3"), load_tiny("qwen3"))
    adapters = [None, *adapters_for(pair, tmp_path)]
    drive = Drive(pair, replace(LIMITS, speculation=drafting), BLOCK)
    said = ask(drive, "r", adapters)
    assert said == {name_of(a): fused(make_model("qwen3")[0], a) for a in adapters}
    assert drive.instance.speculation is not None
    assert bool(drive.instance.speculation.counts.drafted.total()) == (drafting == "draft")


def test_heads_change_no_answer(tmp_path: Path) -> None:
    loaded = headed("qwen3_5")
    made = adapters_for(loaded, tmp_path)
    adapters = [None, *made]
    said = ask(Drive(loaded, replace(LIMITS, speculation="heads"), BLOCK), "r", adapters)
    for adapter in made:
        finish(loaded.adapters.unloading(adapter))  # other tests have this model, too
    assert said == {name_of(a): fused(make_model("qwen3_5")[0], a) for a in adapters}


def test_rows_of_one_token_have_their_adapters(tmp_path: Path) -> None:
    """Recurrent rows without a state are fed in a forward of their own."""
    loaded = load_tiny("qwen3_next")
    adapters = [None, *adapters_for(loaded, tmp_path)]
    drive = Drive(loaded, block_size=BLOCK)
    drive.add("before", PROMPT, sampling(40), adapter=adapters[1])
    for _ in range(6):
        drive.step()
    for adapter in adapters:
        drive.add(name_of(adapter), PROMPT[:1], sampling(ANSWER), adapter=adapter)
    drive.finish()
    for adapter in adapters:
        alone = fused(make_model("qwen3_next")[0], adapter, PROMPT[:1])
        assert drive.answers[f"{name_of(adapter)}/0"] == alone


def test_rows_that_are_computed_again_keep_their_adapters(tmp_path: Path) -> None:
    loaded = load_tiny("llama")
    adapters = [None, *adapters_for(loaded, tmp_path)]
    calm, drive = Drive(loaded), Drive(loaded, block_size=BLOCK)
    for adapter in adapters:
        drive.add(name_of(adapter), PROMPT, sampling(ANSWER), adapter=adapter, n=2)
    for wait in (3, 9):
        for _ in range(wait):
            drive.step()
        drive.lose()
    drive.finish()
    expected = ask(calm, "r", adapters)
    for name, answer in expected.items():
        assert drive.answers[f"{name}/0"] == drive.answers[f"{name}/1"] == answer


def test_keys_and_values_in_few_bits_change_nothing_of_it(tmp_path: Path) -> None:
    loaded = quantised("llama", FOUR_BITS[0])
    adapters = [None, *adapters_for(loaded, tmp_path)]
    drive = Drive(loaded, block_size=BLOCK)
    together = ask(drive, "r", adapters)
    assert ask(drive, "warm", adapters) == together
    for adapter in adapters:
        assert (
            ask(Drive(loaded), "alone", [adapter])[name_of(adapter)] == together[name_of(adapter)]
        )


def test_a_prompt_with_an_image_has_its_adapter(tmp_path: Path) -> None:
    name = "qwen3_vl"
    loaded = replace(seeing(name), adapters=type(seeing(name).adapters)())
    layers = [
        path
        for path, _ in loaded.target.named_modules()
        if "language_model" in path and path.endswith(ATTENTION)
    ]
    adapter = save_adapter(tmp_path / "a", loaded.target, keys=layers, layers=0)
    finish(loaded.adapters.loading(loaded.target, adapter))
    told = Told(name).then(words("a", 4), picture(name, 1), words("b", 6))
    drive = Drive(loaded, block_size=4)
    for number, own in enumerate((None, adapter, None, adapter)):
        drive.add(f"{number}", told.tokens, sampling(ANSWER), images=told.images, adapter=own)
    drive.finish()
    plain, adapted, again, also = (drive.answers[f"{number}/0"] for number in range(4))
    assert plain == again != adapted == also


def test_blocks_on_disk_are_found_after_a_restart_by_their_own_adapter(tmp_path: Path) -> None:
    loaded = load_tiny("llama")
    first, second, third = adapters_for(loaded, tmp_path)
    with cold_cache.instance(tmp_path / "kv", loaded, write_through=True) as drive:
        before = ask(drive, "before", [None, first, second])
    fresh = load_tiny("llama")
    for adapter in (third, second, first):  # in other slots than before
        finish(fresh.adapters.loading(fresh.model, adapter))
    with cold_cache.instance(tmp_path / "kv", fresh) as drive:
        after = ask(drive, "after", [None, first, second, third])
        cached = {name: found.cached for name, found in drive.admitted.items()}
    assert {name: after[name] for name in before} == before
    assert cached.pop("after-a2") == 0
    assert min(cached.values()) >= 2 * BLOCK


def test_logits_of_an_adapter_in_half_precision_are_those_of_mlx_lm(tmp_path: Path) -> None:
    loaded = load_tiny("llama")
    loaded.model.set_dtype(mx.bfloat16)
    adapter = save_adapter(tmp_path / "a", loaded.model, keys=DENSE)
    finish(loaded.adapters.loading(loaded.model, adapter))
    with loaded.adapters.using([adapter]):
        own = loaded.model(mx.array([PROMPT]))
    model, _ = make_model("llama")
    model.set_dtype(mx.bfloat16)
    worn = wear(model, adapter.path)(mx.array([PROMPT]))
    assert own.dtype == worn.dtype == mx.bfloat16
    assert mx.allclose(own.astype(mx.float32), worn.astype(mx.float32), atol=0.05).item()
