"""Which models get vision, and what users are told where they get none."""

import json
import logging
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.memory.encoder import STRUCTURAL
from omlx_server.core.work import finish
from omlx_server.engine.model_instance import ModelInstance
from omlx_server.errors import how_to_install
from omlx_server.models.locate import Located
from omlx_server.settings import Settings
from omlx_server.wiring.images import why_no_vision
from omlx_server.wiring.model_factory import InstanceFactory
from tests.compute.vision.recorded import save
from tests.tiny_models import save_tiny


@pytest.fixture
def located(tmp_path: Path) -> Located:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "preprocessor_config.json").write_text("{}")
    return Located(save("qwen2_vl", tmp_path / "shown"), ("shown",))


def made(located: Located, **settings: Any) -> ModelInstance:
    own = {"cache": {"hot_cache_only": True, "block_tokens": 16}, **settings}
    return finish(InstanceFactory(Settings.of(own)).making(located))


def test_a_vision_model_sees_and_its_tower_is_planned(located: Located) -> None:
    loaded = made(located).runner.loaded
    assert loaded.has_vision and not loaded.why_no_vision
    assert loaded.vision is not None and loaded.vision.plan.factors != STRUCTURAL


def test_where_bytes_of_a_step_are_given_the_tower_is_bounded(located: Located) -> None:
    loaded = made(located, memory={"activation_reserve": "1MB"}).runner.loaded
    assert loaded.vision is not None and loaded.vision.plan.factors == STRUCTURAL


def test_a_model_for_text_sees_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny(tmp_path / "llama", "llama")
    with caplog.at_level(logging.WARNING):
        loaded = made(Located(tmp_path / "llama", ("llama",))).runner.loaded
    assert (loaded.has_vision, loaded.why_no_vision) == (False, "it is a model for text")
    assert "sees no images" not in caplog.text


def test_images_may_be_switched_off(located: Located, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = made(located, images={"enabled": False}).runner.loaded
    assert (loaded.has_vision, loaded.why_no_vision) == (False, "images.enabled is off")
    assert "sees no images" not in caplog.text


def test_heads_and_images_are_not_combined(
    located: Located, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = made(located, speculation={"mode": "heads"}).runner.loaded
    assert not loaded.has_vision and "speculation.mode is heads" in loaded.why_no_vision
    assert "shown sees no images: speculation.mode is heads" in caplog.text


def test_an_unknown_tower_is_named(located: Located, caplog: pytest.LogCaptureFixture) -> None:
    config = json.loads((located.path / "config.json").read_text())
    (located.path / "config.json").write_text(json.dumps({**config, "model_type": "fuyu"}))
    with caplog.at_level(logging.WARNING):
        why = why_no_vision(located, Settings.of({}))
    assert why == "vision towers of the type fuyu are not known here"
    assert f"shown sees no images: {why}" in caplog.text


def test_the_extra_is_named_where_it_is_missing(
    located: Located, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    why = why_no_vision(located, Settings.of({}))
    assert why == f"the extra 'vision' is not installed ({how_to_install('vision')})"
