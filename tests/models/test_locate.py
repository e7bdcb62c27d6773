"""Names, paths and ids -> directories; and what is said when there is none."""

import json
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models.locate import (
    Located,
    bundled_directory,
    find_installed,
    installed,
    locate,
)
from tests.models import fake_hub
from tests.models.directories import Places
from tests.models.fake_hub import HubAt

pytestmark = pytest.mark.usefixtures("hub")
NOWHERE = "http://127.0.0.1:9"
REPO = "acme/tiny-4bit"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"no",
    "modeling_acme.py": b"no",
    "tokenizer_acme.py": b"no",
    "pytorch_model.bin": b"no",
}


def make_model(directory: Path, *, without: str = "") -> Path:
    directory.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if name != without:
            (directory / name).touch()
    return directory


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    make_model(root / "plain")
    make_model(root / "acme" / "nested-4bit")
    make_model(root / ".staging-1-a" / "model")
    return root


def test_a_path(models: Path) -> None:
    found = locate(str(models / "plain"), Places())
    assert found == Located(models / "plain", ("plain",))


def test_a_relative_path(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(models)
    assert locate("./plain", Places()).path == models / "plain"
    assert locate("acme/nested-4bit", Places()).path == models / "acme" / "nested-4bit"


def test_a_folder_of_the_working_directory_does_not_hide_a_model(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("plain", Places([models])).path == models / "plain"


@pytest.mark.parametrize("name", ["acme/nested-4bit", "nested-4bit"])
def test_org_folders(models: Path, name: str) -> None:
    found = locate(name, Places([models]))
    assert found.path == models / "acme" / "nested-4bit"
    assert found.names == ("acme/nested-4bit", "nested-4bit")


def test_a_full_name_goes_before_a_short_one(models: Path) -> None:
    make_model(models / "acme" / "plain")
    assert locate("plain", Places([models])).path == models / "plain"


def test_earlier_directories_go_first(models: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other" / "plain")
    assert locate("plain", Places([tmp_path / "none", other.parent, models])).path == other


def test_a_model_to_which_several_paths_lead_is_one(models: Path, tmp_path: Path) -> None:
    before = sorted((model.path, model.names[0]) for model in installed(Places([models])))
    (models / "a-loop").symlink_to(models)
    (models / "acme" / "up").symlink_to("..")
    (models / "again").symlink_to("acme")
    (models / "also").symlink_to("plain")
    (tmp_path / "link").symlink_to(models)
    found = installed(Places([models, tmp_path / "link", models / "acme"]))
    assert sorted((model.path, model.names[0]) for model in found) == before
    also = find_installed("also", Places([models]))
    assert also is not None and also.path == models / "plain"


def test_installed_lists_complete_models_only(models: Path) -> None:
    make_model(models / "broken", without="model.safetensors")
    names = [model.names[0] for model in installed(Places([models], True))]
    assert names == ["acme/nested-4bit", "plain"]


@pytest.mark.parametrize("name", ["../models/plain", "..", "acme/../plain", "/etc"])
def test_clients_can_not_name_paths(models: Path, name: str) -> None:
    assert find_installed(name, Places([models], True)) is None
    absolute = str(models / "plain")
    assert find_installed(absolute, Places([models], True)) is None


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_what_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    path = make_model(tmp_path / "m", without=missing)
    words = missing.replace("model.", r"model\*.")
    with pytest.raises(ModelUnavailable, match=words) as caught:
        locate(str(path), Places())
    assert "MLX layout" in caught.value.hint
    with pytest.raises(ModelUnavailable, match=words):
        locate("m", Places([tmp_path]))


@pytest.mark.parametrize(
    ("file", "kind"), [("model.Q4_K_M.gguf", "GGUF"), ("pytorch_model.bin", "PyTorch")]
)
def test_other_weights_are_named(tmp_path: Path, file: str, kind: str) -> None:
    path = make_model(tmp_path / "m", without="model.safetensors")
    (path / file).touch()
    with pytest.raises(ModelUnavailable, match=f"it holds {kind} weights"):
        locate(str(path), Places())
    reason = "can't be served: it is cut" if kind == "GGUF" else f"is a {kind} file"
    with pytest.raises(ModelUnavailable, match=reason):
        locate(str(path / file), Places([tmp_path]))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = make_model(tmp_path / "m", without="model.safetensors")
    (path / "model-00002-of-00002.safetensors").touch()
    with pytest.raises(ModelUnavailable, match="model-00001-of-00002"):
        locate(str(path), Places())
    index = {"weight_map": {"a": "a.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelUnavailable, match=r"a\.safetensors"):
        locate(str(path), Places())
    (path / "a.safetensors").touch()
    assert locate(str(path), Places()).path == path


@pytest.mark.parametrize(
    ("typed", "meant"), [("Plian", "plain"), ("startr", "starter"), ("qwen3-4", "qwen3-4b")]
)
def test_near_names_are_suggested(models: Path, typed: str, meant: str) -> None:
    with pytest.raises(ModelUnavailable, match=typed) as caught:
        locate(typed, Places([models]))
    assert f"Did you mean {meant}" in caught.value.hint


def test_far_names_get_help_instead(models: Path) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        locate("zzzzzz", Places([models]))
    assert "org/name" in caught.value.hint


def test_download_into_the_cache_and_find_it_offline(hub_at: HubAt) -> None:
    with fake_hub.serve(REPO, FILES) as (address, asked):
        hub_at(address)
        found = locate(REPO, Places([], True))
    assert found.names == (REPO, "tiny-4bit")
    assert sorted(path.name for path in found.path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert not [path for path in asked if path.endswith((".py", ".bin"))]
    hub_at(NOWHERE)
    assert locate(REPO, Places([], True)) == found
    assert installed(Places([], True)) == [found]


def test_download_into_the_models_directory(tmp_path: Path, hub_at: HubAt) -> None:
    root = tmp_path / "models"
    with fake_hub.serve(REPO, FILES) as (address, _):
        hub_at(address)
        found = locate(REPO, Places([root]))
    assert found.path == root / REPO
    hub_at(NOWHERE)
    assert locate("tiny-4bit", Places([root])) == found


def test_an_incomplete_cache_is_not_used(hub_at: HubAt) -> None:
    files = {name: FILES[name] for name in ("config.json", "tokenizer.json")}
    with fake_hub.serve(REPO, files) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match=r"model\*\.safetensors"):
            locate(REPO, Places([], True))
    assert installed(Places([], True)) == []


@pytest.mark.parametrize("use_hf_cache", [True, False])
def test_no_network(tmp_path: Path, use_hf_cache: bool) -> None:
    with pytest.raises(ModelUnavailable, match="Could not download acme/tiny-4bit") as caught:
        locate(REPO, Places([tmp_path], use_hf_cache))
    assert "\n" not in caught.value.message
    assert "network" in caught.value.hint


def test_not_on_the_hub(hub_at: HubAt) -> None:
    with fake_hub.serve("acme/other", FILES) as (address, _):
        hub_at(address)
        with pytest.raises(ModelUnavailable, match="was not found on Hugging Face"):
            locate(REPO, Places([], True))


def test_nowhere_to_download_to() -> None:
    with pytest.raises(ModelUnavailable, match="no directory"):
        locate(REPO, Places())


def test_a_directory_that_is_away_is_named(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable) as failed:
        locate("nowhere", Places([tmp_path / "drive", models]))
    assert f"{tmp_path / 'drive'} in models.dirs can't be read: No such file" in failed.value.hint
    with pytest.raises(ModelUnavailable) as failed:
        locate("nowhere", Places([Path("~/.cache/none/models"), models]))
    assert "can't be read" not in failed.value.hint


def test_a_bundled_model_is_where_it_was_made_else_in_the_first_directory(tmp_path: Path) -> None:
    places = Places([tmp_path / "new", tmp_path / "own"])
    assert bundled_directory("Tiny", Path.is_dir, places) == tmp_path / "new" / "Tiny"
    (tmp_path / "own" / "Tiny").mkdir(parents=True)
    assert bundled_directory("Tiny", Path.is_dir, places) == tmp_path / "own" / "Tiny"
