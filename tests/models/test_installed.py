"""What is on the disk, whole, broken and unrelated."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from omlx_server.core.model_files.kind import ModelKind
from omlx_server.core.model_files.weights import quantization_of
from omlx_server.models.hub.hub import Hub
from omlx_server.models.installed import Installed, ModelOrigin, installed_models
from omlx_server.models.locate import find_installed
from omlx_server.models.remove import remove
from tests.models.directories import CHAT, Places, make, make_cached, no_tensors


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


def only(root: Path) -> Installed:
    (found,) = installed_models(Places([root]))
    return found


def test_a_model_is_described(root: Path) -> None:
    config = CHAT | {"quantization": {"bits": 4, "group_size": 64}}
    path = make(root / "acme" / "tiny-4bit", config, weights=123)
    assert only(root) == Installed(
        path=path,
        names=("acme/tiny-4bit", "tiny-4bit"),
        source=ModelOrigin.DIRECTORY,
        kind=ModelKind.CHAT,
        model_type="llama",
        architecture="LlamaForCausalLM",
        quantization="4-bit",
        weight_bytes=123,
        context_length=2048,
        has_vision=False,
        vision="",
        no_images="it is a model for text",
        problem="",
    )


def test_weights_are_those_that_the_index_names(root: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    path = make(root / "m", model__safetensors__index__json=index)
    assert only(root).problem == "it has no model-1.safetensors"
    (path / "model-1.safetensors").write_bytes(no_tensors(12))
    (path / "model-2.safetensors").write_bytes(no_tensors(13))
    assert (only(root).weight_bytes, only(root).problem) == (25, "")


def test_the_cache_and_broken_downloads(root: Path, hub: Hub) -> None:
    make_cached(hub.root, "acme/here")
    partial = make_cached(hub.root, "acme/partial")
    (partial / "model.safetensors").unlink()
    (partial / "model.safetensors").symlink_to("../../blobs/gone")
    (hub.root / "models--acme--nothing" / "blobs").mkdir(parents=True)
    (hub.root / "datasets--acme--texts").mkdir()
    make(root / ".downloads" / "acme" / "coming")
    found = {m.names[0]: m for m in installed_models(Places([root], True))}
    assert list(found) == ["acme/coming", "acme/here", "acme/nothing", "acme/partial"]
    assert found["acme/here"].source is ModelOrigin.HUB
    assert found["acme/partial"].problem == "it has no model*.safetensors"
    for name in ("acme/nothing", "acme/coming"):
        assert "pull" in found[name].problem
    assert [m.names[0] for m in installed_models(Places([root]))] == ["acme/coming"]


@pytest.mark.parametrize("below", [".", "hub"])
def test_a_hubs_cache_among_the_directories(tmp_path: Path, hub: Hub, below: str) -> None:
    """As a copy of one on a drive, or the one that is looked through anyway."""
    root = tmp_path / "drive" / below
    here = make_cached(root, "acme/here-4bit")
    (root / "models--acme--begun" / "blobs").mkdir(parents=True)
    (root / ".locks" / "models--acme--here").mkdir(parents=True)
    places = Places([tmp_path / "drive"], True)
    (found,) = installed_models(places)
    assert (found.path, found.problem) == (here, "")
    assert found.names == ("acme/here-4bit", "here-4bit")
    located = find_installed("acme/here-4bit", places)
    assert located is not None and located.path == here
    also = make_cached(hub.root, "acme/also")
    assert {m.path for m in installed_models(Places([hub.root], True))} == {also}
    assert remove(found, places.dirs) > 0 and not (root / "models--acme--here-4bit").exists()
    assert (root / "models--acme--begun").exists()


def test_a_snapshot_that_is_whole_goes_before_main(hub: Hub) -> None:
    """A download by a commit leaves no refs/main, and one that broke off leaves a partial one."""
    main = make_cached(hub.root, "acme/m")
    for age, letter in enumerate("abd"):
        snapshot = make(main.with_name(letter * 40))
        os.utime(snapshot, (1000 - age, 1000 - age))
    (main.with_name("a" * 40) / "model.safetensors").unlink()
    os.utime(main.with_name("a" * 40), (2000, 2000))
    assert hub.cached("acme/m") == main
    (main / "model.safetensors").unlink()
    assert hub.cached("acme/m") == main.with_name("b" * 40)
    (hub.folder("acme/m") / "refs" / "main").unlink()
    assert hub.cached("acme/m") == main.with_name("b" * 40)
    (found,) = installed_models(Places([], True))
    assert (found.path, found.problem) == (main.with_name("b" * 40), "")


def test_a_name_that_two_have_is_the_first_ones(root: Path, tmp_path: Path) -> None:
    first = make(root / "acme" / "m")
    second = make(tmp_path / "more" / "acme" / "m")
    short = make(tmp_path / "more" / "m")
    found = installed_models(Places([root, tmp_path / "more"]))
    assert [(m.path, m.names) for m in found] == [
        (first, ("acme/m",)),
        (second, ("acme/m",)),
        (short, ("m",)),
    ]
    assert [bool(m.problem) for m in found] == [False, True, False]
    assert str(first) in found[1].problem
    for name in ("acme/m", "m"):
        located = find_installed(name, Places([root, tmp_path / "more"]))
        assert located is not None
        assert next(m for m in found if name in m.names).path == located.path


def test_catalogue_models_have_their_short_names(root: Path) -> None:
    make(root / "SmolLM2-135M-Instruct-f32")
    make(root / "all-MiniLM-L6-v2", {"architectures": ["BertModel"]})
    minilm, starter = sorted(installed_models(Places([root])), key=lambda m: m.kind.value)[::-1]
    assert starter.names == ("starter", "SmolLM2-135M-Instruct")
    assert minilm.names == ("all-MiniLM-L6-v2", "minilm")
    assert starter.source is minilm.source is ModelOrigin.CATALOGUE


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"config.json": b"{"}, "its config.json can't be read"),
        ({"config.json": b"\xff\xfe"}, "its config.json can't be read"),
        ({"config.json": b"[" * 100_000}, "its config.json can't be read"),
        ({"config.json": b"[1]"}, "its config.json can't be read"),
        ({"model.safetensors.index.json": b"[]"}, "index.json can't be read"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": [1]}}'}, "has no [1]"),
        ({"config.json": b'{"architectures": ["BartForConditionalGeneration"],'
                         b' "is_encoder_decoder": true}'}, "is BartFor"),
        ({"model.safetensors": no_tensors(100)[:-1]}, "model.safetensors is cut"),
        ({"config.json": b'{"quantization_config": {"quant_method": "hqq"}}'}, "quantised by hqq"),
    ],
)  # fmt: skip
def test_what_can_not_be_served_says_why(root: Path, files: dict[str, bytes], problem: str) -> None:
    path = make(root / "m")
    for name, data in files.items():
        (path / name).write_bytes(data)
    assert problem in only(root).problem


def test_other_layouts_are_named(root: Path) -> None:
    path = root / "m"
    path.mkdir(parents=True)
    (path / "pytorch_model.bin").touch()
    assert only(root).problem == "it has no config.json; it holds PyTorch weights"


def test_nothing_in_a_directory_raises(root: Path) -> None:
    make(root / "good")
    (root / "loop").symlink_to(root / "loop")
    (root / "gone").symlink_to(root / "nowhere")
    (root / "file").touch()
    (root / "odd\udce9name").mkdir()
    make(root / "linked")
    (root / "linked" / "config.json").unlink()
    (root / "linked" / "config.json").symlink_to("config.json")
    found = installed_models(Places([root, root / "file", root / "none", root / "loop"]))
    assert [m.names[0] for m in found if not m.problem] == ["good"]


def test_many_directories_are_no_burden(root: Path, hub: Hub) -> None:
    for i in range(20):
        make(root / f"m{i}")
        make_cached(hub.root, f"acme/c{i}")
    for i in range(1500):
        (root / f"unrelated{i}").mkdir()
    installed_models(Places([root], True))
    spent = []
    for _ in range(5):
        begin = time.process_time()
        found = installed_models(Places([root], True))
        spent.append(time.process_time() - begin)
    assert len(found) == 40
    assert min(spent) < 1  # 0.1 s where nothing else runs


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, ""),
        ({"quantization": {"bits": 8, "group_size": 64, "mode": "affine"}}, "8-bit"),
        ({"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "4-bit gptq"),
        ({"text_config": {"quantization": {"bits": 3}}}, "3-bit"),
        ({"quantization": None, "text_config": None}, ""),
    ],
)
def test_quantization_in_words(config: dict[str, Any], words: str) -> None:
    assert quantization_of(config) == words
