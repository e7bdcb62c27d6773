"""Models are loaded with their vision, or without."""

import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx_server.compute.model.loader import load, loading, weight_bytes
from omlx_server.compute.planning.plan_file import key_of
from omlx_server.core.work import finish
from tests.compute.vision.prompts import (
    FAMILIES,
    Told,
    load_with_vision,
    picture,
    seeing,
    vision_of,
)
from tests.compute.vision.recorded import save, tensors
from tests.compute.vision.seeing import loaded as loaded_apart
from tests.tiny_models import save_tiny

TEXT = [17, 4, 33, 90, 12, 61, 7, 28, 55]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_with_eyes_is_the_same_for_text(name: str, tmp_path: Path) -> None:
    """So what is cached of text holds with vision and without."""
    path = save(name, tmp_path)
    blind, seeing = load(path), finish(loading(path, vision=True))
    assert (blind.has_vision, seeing.has_vision) == (False, True)
    assert (blind.why_no_vision, seeing.why_no_vision) == ("", "")
    assert blind.fingerprint == seeing.fingerprint
    assert key_of(blind) == key_of(seeing)
    assert mx.array_equal(blind.model(mx.array([TEXT])), seeing.model(mx.array([TEXT]))).item()
    module: Any = vision_of(seeing).tower
    tower = weight_bytes(module)
    assert seeing.weight_bytes == blind.weight_bytes + tower > weight_bytes(seeing.model)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tower_that_cannot_be_loaded_leaves_a_model_for_text(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tensors(name)
    gone = next(key for key in weights if "vision" in key or "visual" in key)
    del weights[gone]
    with caplog.at_level(logging.WARNING):
        found = finish(loading(save(name, tmp_path, weights), vision=True))
    assert not found.has_vision
    assert found.why_no_vision.startswith("its vision tower can't be loaded: ")
    assert "has no weights called" in found.why_no_vision and "sees no images" in caplog.text
    assert found.model(mx.array([TEXT])).shape[1] == len(TEXT)


def test_a_model_for_text_has_no_vision(tmp_path: Path) -> None:
    save_tiny(tmp_path / "llama", "llama")
    found = finish(loading(tmp_path / "llama", vision=True))
    assert not found.has_vision and found.why_no_vision == "no vision tower is known for it"


def test_newer_names_of_the_weights_of_gemma_are_known(tmp_path: Path) -> None:
    """transformers saves them so since 4.52."""
    starts = {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head.": "lm_head.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    }
    renamed = {}
    for key, array in tensors("gemma3").items():
        start = next(start for start in starts if key.startswith(start))
        renamed[key.replace(start, starts[start], 1)] = array
    found = finish(loading(save("gemma3", tmp_path, renamed), vision=True))
    expected = loaded_apart("gemma3").model(mx.array([TEXT]))
    assert mx.array_equal(found.model(mx.array([TEXT])), expected).item()
    shown = picture("gemma3", 1)
    first, second = [
        finish(vision_of(one).tower.computing(mx.array(shown.pixels), shown.grid)).embeddings
        for one in (found, seeing("gemma3"))
    ]
    assert mx.array_equal(first, second).item()


def test_what_is_used_stays_longest_and_what_is_wanted_stays() -> None:
    loaded = load_with_vision("qwen2_vl")
    vision, told = vision_of(loaded), Told("qwen2_vl")
    for seed in range(4):
        told = told.then([1], picture("qwen2_vl", seed))
    for image, shown in zip(told.images, told.shown, strict=True):
        finish(vision.computing(image, shown.pixels))
    first, second, third, fourth = (image.digest for image in told.images)
    each = vision.nbytes // 4
    assert vision.has(first)
    assert vision.spare({first, third}) == 2 * each
    assert vision.let_go(1, {second}) == each
    assert [vision.has(d) for d in (first, second, third, fourth)] == [True, True, False, True]
    assert vision.let_go(9 * each, {second, first}) == each
    assert [vision.has(d) for d in (first, second, fourth)] == [True, True, False]
    assert vision.let_go(9 * each) == 2 * each and vision.nbytes == 0
    assert vision.let_go(1) == 0
