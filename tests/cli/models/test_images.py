"""What `list` and `show` say of models that take images, and of those that could but do not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from omlx_server.cli.app import app
from tests.compute.vision.tiny import CONFIGS
from tests.models.directories import make

runner = CliRunner()
# As the published models have them.
PREPROCESSORS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 16,
        "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216},
    },
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 256},
    "smolvlm": {
        "image_processor_type": "SmolVLMImageProcessor",
        "max_image_size": {"longest_edge": 512},
        "size": {"longest_edge": 2048},
        "image_seq_len": 64,
    },
}


def omlx(*arguments: str) -> str:
    result = runner.invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def models(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMLX_MODELS__DIRS", str(home / "models"))
    monkeypatch.setenv("OMLX_MODELS__USE_HF_CACHE", "false")
    monkeypatch.setenv("OMLX_SERVER__PORT", "1")
    for family, said in PREPROCESSORS.items():
        save(home / "models" / family, CONFIGS[family], said)
    return home / "models"


def save(path: Path, config: object, preprocessor: object) -> Path:
    make(path, config, preprocessor_config__json=json.dumps(preprocessor))
    save_file({"visual.x": np.zeros(2, np.float32)}, path / "model.safetensors")
    return path


def shown(name: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(omlx("show", name, "--json", *arguments))
    return found


def row(name: str, *arguments: str) -> list[str]:
    """The lines of a model in the table."""
    lines = omlx("list", *arguments).splitlines()
    first = next(n for n, line in enumerate(lines) if line.split()[:1] == [name])
    more = [line for line in lines[first + 1 :] if line.startswith("   ")]
    return [lines[first], *more[:1]]


@pytest.mark.parametrize(
    ("family", "name", "tokens"),
    [
        ("qwen3_vl", "Qwen3-VL", (256, 1024, 2040)),
        ("gemma3", "Gemma 3", (256, 256, 256)),
        ("smolvlm", "SmolVLM", (17 * 64, 17 * 64, 13 * 64)),
    ],
)
def test_show_says_which_tower_and_how_many_tokens(
    models: Path, family: str, name: str, tokens: tuple[int, int, int]
) -> None:
    found = shown(family)
    assert (found["images"], found["vision"], found["no_images"]) == (True, name, None)
    assert tuple(found["image_tokens"].values()) == tokens
    line = next(x for x in omlx("show", family).splitlines() if x.startswith("images"))
    words = f"512 x 512 pixels are {tokens[0]} tokens, 1024 x 1024 pixels are {tokens[1]} tokens"
    if len(set(tokens)) == 1:
        words = f"an image is {tokens[0]} tokens"
    assert f"yes, by a vision tower of {name}: {words}" in line


def test_the_bound_of_the_settings_counts(models: Path) -> None:
    found = shown("qwen3_vl", "--set", "images.max_tokens=1000")
    assert found["image_tokens"]["512 x 512"] == 256
    assert 900 < found["image_tokens"]["1024 x 1024"] <= 1000


def test_list_says_who_takes_images(models: Path) -> None:
    make(models / "text")
    assert "chat, images" in row("gemma3")[0]
    assert "images" not in row("text")[0]
    listed = {m["name"]: m["images"] for m in json.loads(omlx("list", "--json"))["models"]}
    assert listed == {"qwen3_vl": True, "gemma3": True, "smolvlm": True, "text": False}


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ("images.enabled=false", "images.enabled is off"),
        ("speculation.mode=heads", "speculation.mode is heads"),
    ],
)
def test_a_setting_that_forbids_images_is_named(models: Path, sets: str, why: str) -> None:
    name, note = row("gemma3", "--set", sets)
    assert "images" not in name and f"no images: {why}" in note
    found = shown("gemma3", "--set", sets)
    assert (found["images"], found["vision"]) == (False, "Gemma 3")
    assert why in found["no_images"]
    assert "image_tokens" not in found


def test_a_tower_that_is_not_known_and_one_that_is_not_there_are_named(models: Path) -> None:
    save(models / "other", CONFIGS["gemma3"] | {"model_type": "pixtral"}, {})
    make(models / "bare", CONFIGS["gemma3"], preprocessor_config__json="{}")
    assert "no images: vision towers of the type pixtral are not known" in row("other")[1]
    assert "no images: its files have no weights of the vision tower" in row("bare")[1]
    assert shown("other")["vision"] is None
    assert "none: its files have no weights" in omlx("show", "bare")


def test_a_preprocessor_that_makes_no_sense_is_told(models: Path) -> None:
    save(models / "odd", CONFIGS["gemma3"], {"image_processor_type": "Odd"})
    found = shown("odd")
    assert (found["images"], "image_tokens" in found) == (False, False)
    assert "'Odd' is not known" in found["no_images"]
    assert "'Odd' is not known" in omlx("show", "odd")
