"""Whether the model in a directory takes images, and that all who know of families agree."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from omlx_server.compute.vision.families import FAMILIES as TOWERS
from omlx_server.compute.vision.families import family_of
from omlx_server.core.model_files.vision import FAMILIES, has_tower
from omlx_server.images.prepare.families import make_preparer
from omlx_server.models.vision import (
    has_pillow,
    lacks_for_images,
    preprocessor_config,
    why_no_images,
)
from tests.compute.vision.tiny import CONFIGS
from tests.models.directories import make

TEXT, TOWER = "model.norm.weight", "visual.merger.norm.weight"


def save(directory: Path, *names: str) -> Path:
    """A model of the Qwen3-VL family with tensors of these names."""
    path = make(directory, CONFIGS["qwen3_vl"], preprocessor_config__json="{}")
    save_file({name: np.zeros(2, np.float32) for name in names}, path / "model.safetensors")
    return path


def test_every_family_of_towers_is_known_by_its_name_and_prepares_images() -> None:
    assert FAMILIES.keys() == TOWERS.keys() > CONFIGS.keys()
    for name in FAMILIES:
        config = {"model_type": name, "vision_config": {}}
        assert family_of(config) is TOWERS[name]
        assert make_preparer({}, config).plan(64, 64).tokens > 0


@pytest.mark.parametrize("name", TOWERS)
def test_the_names_of_a_towers_weights_are_those_that_are_loaded(name: str) -> None:
    own = ("multi_modal_projector.", "connector.")
    starts = [start for start, _ in TOWERS[name].prefixes]
    towers = [start for start in starts if not start.removeprefix("model.").startswith(own)]
    assert towers and all(has_tower([f"{start}x"]) for start in towers)


def test_the_header_of_the_weights_tells_whether_there_is_a_tower(tmp_path: Path) -> None:
    assert lacks_for_images(save(tmp_path / "whole", TEXT, TOWER)) == ""
    path = save(tmp_path / "text", TEXT)
    assert lacks_for_images(path) == "its files have no weights of the vision tower"


@pytest.mark.parametrize(("names", "takes"), [((TEXT, TOWER), True), ((TEXT,), False)])
def test_the_index_of_the_weights_tells_whether_there_is_a_tower(
    tmp_path: Path, names: tuple[str, ...], takes: bool
) -> None:
    path = save(tmp_path / "m", TEXT)
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert (lacks_for_images(path) == "") is takes


@pytest.mark.parametrize("content", [b"", b"cut", b"\xff" * 64, (9).to_bytes(8, "little") + b"{"])
def test_weights_that_can_not_be_read_have_no_tower(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path / "m", TEXT, TOWER)
    (path / "model.safetensors").write_bytes(content)
    assert "no weights" in lacks_for_images(path)
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": 1, "b": [}')
    assert "no weights" in lacks_for_images(path)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_a_broken_file_on_the_preparation_is_named(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "m", TEXT, TOWER)
    (path / name).write_text("{")
    assert lacks_for_images(path) == f"its {name} can't be read"


def test_nothing_that_lies_in_a_directory_raises(tmp_path: Path) -> None:
    assert lacks_for_images(tmp_path / "nothing") == "it is a model for text"
    assert lacks_for_images(make(tmp_path / "list", [1])) == "it is a model for text"
    assert lacks_for_images(make(tmp_path / "plain")) == "it is a model for text"


def test_what_a_server_lacks_is_told_when_the_files_lack_nothing(tmp_path: Path) -> None:
    whole, text = save(tmp_path / "whole", TEXT, TOWER), make(tmp_path / "text")
    assert has_pillow()
    assert why_no_images(whole, enabled=True, uses_heads=False) == ""
    assert why_no_images(whole, enabled=False, uses_heads=False) == "images.enabled is off"
    assert "heads" in why_no_images(whole, enabled=True, uses_heads=True)
    assert why_no_images(text, enabled=False, uses_heads=True) == "it is a model for text"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {}),
        ({"preprocessor_config": {"size": 1}}, {"size": 1}),
        ({"processor_config": {"image_seq_len": 9}}, {"image_seq_len": 9}),
        (
            {"preprocessor_config": {"a": 1}, "processor_config": {"a": 2, "b": 3}},
            {"a": 1, "b": 3},
        ),
        ({"preprocessor_config": [1], "processor_config": {"b": 3}}, {"b": 3}),
    ],
)
def test_both_files_tell_how_images_are_prepared(
    tmp_path: Path, files: Mapping[str, object], expected: Mapping[str, object]
) -> None:
    for name, said in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(said))
    assert preprocessor_config(tmp_path) == expected
