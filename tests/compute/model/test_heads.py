"""Heads out of a directory compute what was trained: their arithmetic is written out here."""

import json
import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from omlx_server.compute.architectures.pair import Headed, language_model
from omlx_server.compute.model.heads import with_heads
from omlx_server.compute.model.loader import LoadedModel, load, loading
from omlx_server.core.work import finish
from omlx_server.errors import ModelUnavailable
from tests.arrays import plain
from tests.compute.headed import (
    HEADED,
    Weights,
    add,
    as_trained,
    experts_apart,
    random_heads,
    save_headed,
    stored,
    write,
)
from tests.tiny_models import VOCAB, make_model, save_tiny

# mlx-lm's deepseek_v3 leaves out a 62nd layer only, so it does not load a small model with heads.
LOADED = [architecture for architecture in HEADED if architecture != "deepseek_v3"]
TOKENS = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
EPS = 1e-5
GROUP = 32


def loaded_with_heads(path: Path) -> LoadedModel:
    return finish(loading(path, heads=True))


def naive(
    architecture: str, heads: Weights, embedded: mx.array, hidden: mx.array
) -> tuple[mx.array, mx.array]:
    """What the heads give to the model's own head, and the hidden states for a further head."""
    parts = [
        mx.fast.rms_norm(embedded, heads["embed_norm.weight"], EPS),
        mx.fast.rms_norm(hidden, heads["hidden_norm.weight"], EPS),
    ]
    inputs = mx.concatenate(parts, axis=-1) @ heads["project.weight"].T
    mask = mx.tri(TOKENS.shape[1], dtype=mx.bool_)
    out = layer_of(architecture, heads)(inputs, mask, None)
    normed = mx.fast.rms_norm(out, heads["norm.weight"], EPS)
    return normed, normed if architecture.startswith("qwen") else out


def layer_of(architecture: str, heads: Weights) -> Any:
    """A layer as the model's last one, with the weights of the heads."""
    layer = language_model(make_model(architecture)[0]).model.layers[-1]
    own = [(name, array) for name, array in heads.items() if name.startswith("layer.")]
    layer.load_weights([(name.removeprefix("layer."), array) for name, array in own])
    return layer


def check(model: nn.Module, architecture: str, heads: Weights) -> None:
    """The heads of a model compute what these weights do."""
    assert isinstance(model, Headed)
    body = language_model(model.target)
    embedding = body.model.embed_tokens.weight
    own_head = body.lm_head.weight if "lm_head" in body else embedding
    hidden = mx.random.normal((*TOKENS.shape, 64), key=mx.random.key(7))
    normed, after = naive(architecture, heads, embedding[TOKENS], hidden)
    logits, chained = model.draft(TOKENS, hidden, model.make_cache()[model.own_caches :])
    assert logits.shape == (*TOKENS.shape, VOCAB)
    assert mx.allclose(logits, normed @ own_head.T, atol=1e-4)
    assert mx.allclose(chained, after, atol=1e-4)


@pytest.mark.parametrize("architecture", LOADED)
def test_heads_come_out_of_the_directory_of_their_model(tmp_path: Path, architecture: str) -> None:
    heads = save_headed(tmp_path, architecture)
    alone, loaded = load(tmp_path), loaded_with_heads(tmp_path)
    check(loaded.model, architecture, heads)
    assert loaded.has_heads and not alone.has_heads
    own = sum(array.nbytes for array in heads.values())
    assert loaded.weight_bytes == alone.weight_bytes + own
    assert loaded.dims == alone.dims and loaded.verifies == alone.verifies


@pytest.mark.parametrize("architecture", LOADED)
def test_the_model_answers_as_without_its_heads(tmp_path: Path, architecture: str) -> None:
    """But its blocks hold more, so that they are no use to it without them."""
    save_headed(tmp_path, architecture)
    alone, loaded = load(tmp_path), loaded_with_heads(tmp_path)
    cache = loaded.model.make_cache()
    assert mx.array_equal(loaded.model(TOKENS, cache=cache), alone.model(TOKENS))
    assert mx.array_equal(loaded.target(TOKENS), alone.model(TOKENS))
    assert loaded.fingerprint != alone.fingerprint
    assert loaded.fingerprint == loaded_with_heads(tmp_path).fingerprint


def test_latents_are_projected_to_keys_and_values_apart(tmp_path: Path) -> None:
    model, config = make_model("deepseek_v3")
    heads = random_heads(model)
    write(tmp_path, as_trained("deepseek_v3", model, heads))
    made = with_heads(model, config, tmp_path)
    assert made is not None
    check(made, "deepseek_v3", heads)


@pytest.mark.parametrize("architecture", ["qwen3_5", "qwen3_5_moe"])
def test_norms_that_are_stored_around_zero_are_used_around_one(
    tmp_path: Path, architecture: str
) -> None:
    """As they were trained, with convolutions that tell it. mlx-lm stores both otherwise."""
    heads = save_headed(tmp_path, architecture)
    converted = loaded_with_heads(tmp_path)
    write(tmp_path, {name: unconverted(name, array) for name, array in stored(tmp_path).items()})
    loaded = loaded_with_heads(tmp_path)
    check(loaded.model, architecture, heads)
    difference = mx.abs(loaded.target(TOKENS) - converted.target(TOKENS)).max()
    assert plain(difference) < 1e-4


def unconverted(name: str, array: mx.array) -> mx.array:
    """A weight of Qwen 3.5 as it was trained. The norm of recurrent layers is around one there."""
    if name.endswith("conv1d.weight"):
        return array.moveaxis(1, 2)
    is_norm = "norm" in name and "linear_attn.norm" not in name
    return array - 1 if is_norm and array.ndim == 1 else array


def test_a_model_whose_head_is_its_embedding_lends_that(tmp_path: Path) -> None:
    heads = save_headed(tmp_path, "qwen3_5", tie_word_embeddings=True)
    check(loaded_with_heads(tmp_path).model, "qwen3_5", heads)


def test_heads_that_were_converted_are_found_below_the_model(tmp_path: Path) -> None:
    """With experts that are together already."""
    save_tiny(tmp_path, "qwen3_5_moe")
    heads = random_heads(make_model("qwen3_5_moe")[0])
    # As those of the dense model are named, whose layer is not cut.
    named = as_trained("qwen3_5", make_model("qwen3_5")[0], heads)
    add(tmp_path, {f"language_model.{name}": array for name, array in named.items()})
    check(loaded_with_heads(tmp_path).model, "qwen3_5_moe", heads)


def test_experts_of_heads_may_be_stored_apart(tmp_path: Path) -> None:
    """As Qwen 3.5 has them, though those of its layers are together."""
    save_tiny(tmp_path, "qwen3_5_moe")
    heads = random_heads(make_model("qwen3_5_moe")[0])
    add(tmp_path, experts_apart(as_trained("qwen3_5", make_model("qwen3_5")[0], heads)))
    check(loaded_with_heads(tmp_path).model, "qwen3_5_moe", heads)


@pytest.mark.parametrize("architecture", ["glm4_moe", "qwen3_5"])
def test_heads_may_be_quantised_as_their_model(tmp_path: Path, architecture: str) -> None:
    """Also when some of their weights have more bits than others."""
    heads = random_heads(make_model(architecture)[0])
    few = {name: array for name, array in heads.items() if name.startswith("layer.")}
    packed, rounded = quantised(heads, {"project": 8} | dict.fromkeys(wide(few), 4))
    save_headed(tmp_path, architecture, packed)
    tell_quantised(tmp_path)
    loaded = loaded_with_heads(tmp_path)
    check(loaded.model, architecture, rounded)


def wide(weights: Weights) -> list[str]:
    """The modules whose weights have two axes or more, but for gates, which stay as they are."""
    names = [name for name, array in weights.items() if array.ndim > 1]
    return [name.removesuffix(".weight") for name in names if not name.endswith("gate.weight")]


def quantised(heads: Weights, bits: dict[str, int]) -> tuple[Weights, Weights]:
    """The heads, with these modules in so many bits; and what such weights stand for."""
    packed, rounded = dict(heads), dict(heads)
    for name, count in bits.items():
        parts = mx.quantize(heads[f"{name}.weight"], group_size=GROUP, bits=count)
        own = dict(zip(("weight", "scales", "biases"), parts, strict=True))
        packed |= {f"{name}.{part}": array for part, array in own.items()}
        rounded[f"{name}.weight"] = mx.dequantize(*parts, group_size=GROUP, bits=count)
    return packed, rounded


def tell_quantised(path: Path) -> None:
    """Say in a model's config that weights are quantised where they have scales."""
    file = path / "config.json"
    settings = {"group_size": GROUP, "bits": 4}
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization": settings}))


def test_a_model_without_weights_of_heads_is_loaded_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path, "glm4_moe")
    check_none(tmp_path, caplog)


def test_so_is_one_whose_heads_are_not_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path, "llama")
    check_none(tmp_path, caplog)


def check_none(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = loaded_with_heads(path)
    assert "has no heads that predict further tokens" in caplog.text
    assert not loaded.has_heads
    assert loaded.fingerprint == load(path).fingerprint


def test_heads_that_are_not_whole_are_refused_in_one_line(tmp_path: Path) -> None:
    save_headed(tmp_path, "qwen3_5")
    write(tmp_path, {n: a for n, a in stored(tmp_path).items() if n != "mtp.fc.weight"})
    with pytest.raises(ModelUnavailable, match="Missing 1 parameters") as error:
        loaded_with_heads(tmp_path)
    assert "\n" not in error.value.message
