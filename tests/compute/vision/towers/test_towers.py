"""Towers compute what the reference computes, from each layout of a checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from omlx_server.compute.vision.families import family_of
from omlx_server.compute.vision.towers import slices
from omlx_server.compute.vision.weights import loading_tower
from omlx_server.core.work import finish
from omlx_server.errors import ModelUnavailable
from tests.compute.vision.recorded import (
    CLOSE,
    Image,
    apart,
    differences,
    family,
    features,
    images,
    load_tower,
    save,
    tensors,
)
from tests.compute.vision.tiny import CONFIGS, GRIDS

Weights = dict[str, mx.array]

_TOWERS = ("model.visual.", "visual.", "vision_tower.", "model.vision_model.", "model.connector.")


def check_tower(name: str, tower: Any, close: float = CLOSE) -> None:
    for number in range(len(GRIDS)):
        for image in images(name, number):
            assert max(differences(features(tower, image), image)) < close
            assert tower.tokens(image.grid) == len(image.embeddings)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tower_equals_the_reference(name: str, tmp_path: Path) -> None:
    check_tower(name, load_tower(name, save(name, tmp_path)))


def mlx_layout(name: str, weights: Weights) -> Weights:
    """As mlx-vlm converts a checkpoint: kernels have their channels last, and towers of Qwen-VL are
    called vision_tower."""
    found = Weights()
    for key, array in weights.items():
        if array.ndim > 3:
            array = mx.contiguous(mx.moveaxis(array, 1, -1))
        for start in ("model.visual.", "visual."):
            if key.startswith(start):
                key = "vision_tower." + key.removeprefix(start)
        if name in ("idefics3", "smolvlm"):
            key = key.removeprefix("model.")
        found[key.replace("vision_tower.e", "vision_tower.vision_model.e")] = array
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_tower_is_found_in_a_conversion_by_mlx_vlm(name: str, tmp_path: Path) -> None:
    weights = mlx_layout(name, tensors(name))
    weights = {
        key.replace("vision_tower.post", "vision_tower.vision_model.post"): array
        for key, array in weights.items()
    }
    check_tower(name, load_tower(name, save(name, tmp_path, weights)))


@pytest.mark.parametrize("name", CONFIGS)
def test_quantised_layers_stay_quantised(name: str, tmp_path: Path) -> None:
    weights = tensors(name)
    layers = [
        key.removesuffix(".weight")
        for key, array in weights.items()
        if array.ndim == 2 and array.shape[1] % 32 == 0 and key.startswith(_TOWERS)
    ]
    for layer in layers:
        packed, scales, biases = mx.quantize(weights[f"{layer}.weight"], group_size=32, bits=8)
        weights |= {f"{layer}.weight": packed, f"{layer}.scales": scales, f"{layer}.biases": biases}
    tower = load_tower(name, save(name, tmp_path, weights))
    parameters: Any = tree_flatten(tower.parameters())
    assert len(layers) == sum(key.endswith(".scales") for key, _ in parameters) > 4
    check_tower(name, tower, close=0.1)


def dropped(weights: Weights) -> str:
    del weights["visual.merger.ln_q.weight"]
    return "has no weights called merger.ln_q.weight"


def added(weights: Weights) -> str:
    weights["visual.merger.third.weight"] = mx.zeros((2, 2))
    return "does not know: merger.third.weight"


def reshaped(weights: Weights) -> str:
    weights["visual.patch_embed.proj.weight"] = mx.zeros((32, 3, 2, 5, 5))
    return "another shape: patch_embed.proj.weight"


@pytest.mark.parametrize("damage", [dropped, added, reshaped])
def test_weights_that_do_not_fit_are_named(
    damage: Callable[[Weights], str], tmp_path: Path
) -> None:
    weights = tensors("qwen2_5_vl")
    message = damage(weights)
    with pytest.raises(ModelUnavailable, match=message):
        load_tower("qwen2_5_vl", save("qwen2_5_vl", tmp_path, weights))


def test_buffers_that_can_be_computed_may_be_there(tmp_path: Path) -> None:
    extra = {"vision_tower.embeddings.position_ids": mx.arange(64)}
    load_tower("gemma3", save("gemma3", tmp_path, tensors("gemma3") | extra))


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    file = save("qwen3_vl", tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelUnavailable, match=r"model\.safetensors"):
        load_tower("qwen3_vl", tmp_path)


DAMAGES: list[tuple[str, str, object]] = [
    ("qwen3_vl", "depth", None),
    ("qwen3_vl", "hidden_size", "32"),
    ("qwen3_vl", "num_heads", 0),
    ("qwen3_vl", "num_heads", 3),
    ("qwen3_vl", "num_position_embeddings", 35),
    ("qwen3_vl", "deepstack_visual_indexes", [0, 3]),
    ("qwen3_vl", "deepstack_visual_indexes", [2, 0]),
    ("qwen3_vl", "deepstack_visual_indexes", 1),
    ("qwen3_vl", "hidden_act", "swish"),
    ("qwen3_vl", "spatial_merge_size", True),
    ("qwen2_5_vl", "window_size", 4),
    ("qwen2_5_vl", "fullatt_block_indexes", [4]),
    ("qwen2_vl", "mlp_ratio", float("nan")),
    ("gemma3", "image_size", 30),
    ("gemma3", "num_attention_heads", 5),
    ("gemma3", "layer_norm_eps", -1),
    ("idefics3", "image_size", 20),
    ("idefics3", "patch_size", -4),
]


@pytest.mark.parametrize(("name", "field", "value"), DAMAGES)
def test_a_damaged_config_is_refused(name: str, field: str, value: object, tmp_path: Path) -> None:
    config = {**CONFIGS[name]}
    config["vision_config"] = {**config["vision_config"], field: value}
    with pytest.raises(ModelUnavailable, match=r"config\.json: vision_config"):
        finish(loading_tower(family(name), config, tmp_path))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_says_nothing_of_a_tower_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="vision_config is missing"):
        finish(loading_tower(family(name), {"text_config": {}}, tmp_path))


def test_the_family_is_told_by_config_json() -> None:
    assert family_of(CONFIGS["gemma3"]) is family("gemma3")
    assert family_of({"model_type": "gemma3"}) is None
    assert family_of({"model_type": "llava", "vision_config": {}}) is None


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("change", [(1, 0, 0), (0, 1, 0), (0, 2, 2), (-1, 0, 0)])
def test_pixels_that_are_not_those_of_the_grid_are_refused(
    name: str, change: tuple[int, int, int], tmp_path: Path
) -> None:
    tower, image = load_tower(name, save(name, tmp_path)), images(name, 0)[0]
    grid = tuple(size + more for size, more in zip(image.grid, change, strict=True))
    with pytest.raises(ValueError, match="grid"):
        finish(tower.computing(image.pixels, grid))


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_5_vl"])
def test_frames_do_not_see_each_other(name: str, tmp_path: Path) -> None:
    tower, image = load_tower(name, save(name, tmp_path)), images(name, 1)[1]
    frames = mx.concatenate([image.pixels, image.pixels[::-1]])
    both = finish(tower.computing(frames, (2, *image.grid[1:])))
    assert apart(both.embeddings[: len(image.embeddings)], image.embeddings) < CLOSE


def test_features_can_be_cut_anywhere(tmp_path: Path) -> None:
    tower, image = load_tower("qwen3_vl", save("qwen3_vl", tmp_path)), images("qwen3_vl", 0)[0]
    whole = features(tower, image)
    part = whole.cut(2, 5)
    assert part.tokens == 3 and part.deepstack is not None and image.deepstack is not None
    assert apart(part.embeddings, image.embeddings[2:5]) < CLOSE
    assert apart(part.deepstack, image.deepstack[:, 2:5]) < CLOSE
    assert whole.nbytes == 4 * (image.embeddings.size + image.deepstack.size)


def test_a_tower_computes_in_the_dtype_of_its_weights(tmp_path: Path) -> None:
    weights = {key: array.astype(mx.bfloat16) for key, array in tensors("qwen3_vl").items()}
    tower, image = (
        load_tower("qwen3_vl", save("qwen3_vl", tmp_path, weights)),
        images("qwen3_vl", 1)[1],
    )
    found = features(tower, image)
    assert {array.dtype for array in found.arrays} == {mx.bfloat16}
    assert np.mean(list(differences(found, image))) < 0.1


@pytest.mark.parametrize("name", CONFIGS)
def test_a_large_image_is_computed_in_slices(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower, image = load_tower(name, save(name, tmp_path)), images(name, 0)[0]
    blocks = CONFIGS[name]["vision_config"].get("depth", 2)
    assert slices_of(tower, image) == 0
    monkeypatch.setattr(slices, "slice_products", lambda: 1.0)
    assert slices_of(tower, image) == blocks
    check_tower(name, tower)


def slices_of(tower: Any, image: Image) -> int:
    return sum(1 for _ in tower.computing(image.pixels, image.grid))


def test_the_scale_of_what_enters_gemma_is_that_of_mlx_lm() -> None:
    assert family("gemma3").input_scale({"text_config": {"hidden_size": 2560}}) == 50.5
    assert family("qwen3_vl").input_scale(CONFIGS["qwen3_vl"]) == 1
