"""Why a model takes no images, from what its files and the settings tell."""

from typing import Any

import pytest

from omlx_server.core.model_files.vision import (
    FAMILIES,
    files_lack,
    has_tower,
    server_lacks,
    vision_family,
)
from omlx_server.errors import how_to_install

SEES: dict[str, Any] = {"model_type": "qwen3_vl", "vision_config": {}}
TENSORS = ("model.embed_tokens.weight", "visual.patch_embed.proj.weight")
FILES = ("preprocessor_config.json",)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_model_of_a_known_family_takes_images(model_type: str) -> None:
    config = {"model_type": model_type, "vision_config": {"depth": 2}}
    assert vision_family(config) == FAMILIES[model_type]
    assert files_lack(config, TENSORS, FILES) == ""
    assert files_lack(config, TENSORS, ("processor_config.json",)) == ""


@pytest.mark.parametrize(
    "config", [{}, {"model_type": "qwen3"}, {**SEES, "vision_config": None}, {"vision_config": 1}]
)
def test_a_model_without_a_vision_config_is_for_text(config: dict[str, Any]) -> None:
    assert vision_family(config) == ""
    assert files_lack(config, TENSORS, FILES) == "it is a model for text"


@pytest.mark.parametrize("model_type", ["pixtral", None, ["qwen3_vl"], "x" * 9999])
def test_a_tower_of_another_family_is_named(model_type: object) -> None:
    why = files_lack({"model_type": model_type, "vision_config": {}}, TENSORS, FILES)
    assert why.startswith(f"vision towers of the type {str(model_type)[:40]} are")
    assert len(why) < 99


def test_weights_without_a_tower_are_told() -> None:
    """As mlx-lm's own conversions of vision models are: their config.json still has one."""
    assert files_lack(SEES, TENSORS[:1], FILES) == "its files have no weights of the vision tower"
    assert files_lack(SEES, (), FILES) == "its files have no weights of the vision tower"


def test_a_model_that_does_not_say_how_images_are_prepared_is_told() -> None:
    assert files_lack(SEES, TENSORS, ()) == "it has no preprocessor_config.json"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("visual.blocks.0.norm1.weight", True),
        ("model.visual.blocks.0.norm1.weight", True),
        ("vision_tower.vision_model.post_layernorm.weight", True),
        ("model.vision_tower.blocks.0.norm1.weight", True),
        ("vision_model.embeddings.patch_embedding.weight", True),
        ("model.vision_model.embeddings.patch_embedding.weight", True),
        ("multi_modal_projector.mm_soft_emb_norm.weight", False),
        ("model.layers.0.visual.weight", False),
        ("language_model.model.norm.weight", False),
    ],
)
def test_the_weights_of_a_tower_are_known_by_their_names(name: str, found: bool) -> None:
    assert has_tower([name]) is found


def test_a_server_says_what_it_lacks_and_what_is_off() -> None:
    whole = {"enabled": True, "has_pillow": True, "uses_heads": False}
    assert server_lacks(**whole) == ""
    assert server_lacks(**{**whole, "enabled": False}) == "images.enabled is off"
    assert how_to_install("vision") in server_lacks(**{**whole, "has_pillow": False})
    assert "speculation.mode is heads" in server_lacks(**{**whole, "uses_heads": True})
