"""A GGUF file is served as it is: found by its path or below `models.dirs`, and never touched."""

import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import pytest
from gguf import GGUFWriter
from transformers import AutoTokenizer

from omlx_server.compute.model.loader import load
from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.gguf.view import VIEWS, complete, remove_old, view_of
from omlx_server.models.installed import installed_models
from omlx_server.models.locate import find_here, find_installed
from omlx_server.models.remove import remove
from omlx_server.models.tokenizer_files import read_templates
from tests.gguf_models import write_model
from tests.models.tiny_gguf import TEMPLATE


@dataclass(frozen=True)
class Places:
    dirs: tuple[Path, ...]
    use_hf_cache: bool = False
    other_programs: tuple[str, ...] = ()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """LM Studio's folders, ORG/NAME/FILE, and the server's own models behind them."""
    (tmp_path / "lm" / "org" / "name").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    write_model(tmp_path / "lm" / "org" / "name", "qwen3")
    return Places((tmp_path / "lm", tmp_path / "own"))


@pytest.mark.parametrize("name", ["org/tiny-qwen3", "tiny-qwen3"])
def test_a_file_is_found_by_name(places: Places, name: str) -> None:
    model = find_installed(name, places)
    assert model is not None and model.names == ("org/tiny-qwen3", "tiny-qwen3")
    assert model.path.parent == places.dirs[1] / VIEWS
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    assert tokenizer.encode("hell") == [tokenizer.convert_tokens_to_ids("hell")]
    assert tokenizer.chat_template
    generation = json.loads((model.path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


def test_a_list_tells_what_it_is_and_makes_no_tokenizer(places: Places) -> None:
    [model] = installed_models(places)
    assert (model.model_type, model.problem, model.context_length) == ("qwen3", "", 512)
    assert model.quantization.startswith("GGUF ")
    assert not (model.path / "tokenizer.json").exists()


def test_nothing_is_written_beside_the_file(places: Places) -> None:
    before = {path: path.stat().st_mtime_ns for path in places.dirs[0].rglob("*")}
    installed_models(places)
    assert find_here("tiny-qwen3", places) is not None
    assert {path: path.stat().st_mtime_ns for path in places.dirs[0].rglob("*")} == before


def test_a_path_is_served(places: Places) -> None:
    [file] = places.dirs[0].rglob("*.gguf")
    model = find_here(str(file), places)
    assert model is not None and model.names == ("tiny-qwen3",)
    layout.check(model.path)
    assert layout.weight_files(model.path)[0].resolve() == file


def test_a_directory_with_one_file_is_served(places: Places) -> None:
    folder = places.dirs[0] / "org" / "name"
    model = find_here(str(folder), places)
    assert model is not None and model.names == ("tiny-qwen3",)
    write_model(folder, "llama")
    with pytest.raises(ModelUnavailable, match="has 2 models in GGUF") as caught:
        find_here(str(folder), places)
    assert "tiny-llama.gguf, tiny-qwen3.gguf" in caught.value.hint


def test_a_file_that_changed_gets_a_view_of_its_own(places: Places) -> None:
    [file] = places.dirs[0].rglob("*.gguf")
    first = view_of(file, places.dirs[1] / VIEWS)
    assert view_of(file, places.dirs[1] / VIEWS) == first
    write_model(file.parent, "qwen3", ["Q8_0"])
    assert view_of(file, places.dirs[1] / VIEWS) != first


def test_a_view_tells_its_chat_template_before_it_has_a_tokenizer(places: Places) -> None:
    [file] = places.dirs[0].rglob("*.gguf")
    view = view_of(file, places.dirs[1] / VIEWS)
    assert not (view / "tokenizer.json").exists()
    assert read_templates(view) == ("chat_template.jinja", {"default": TEMPLATE})
    complete(view)
    assert read_templates(view) == ("chat_template.jinja", {"default": TEMPLATE})


def test_a_file_that_vanished_is_no_model(places: Places) -> None:
    [file] = places.dirs[0].rglob("*.gguf")
    view = view_of(file, places.dirs[1] / VIEWS)
    complete(view)
    file.unlink()
    assert not installed_models(places) and layout.missing_from(view)


# --- Old views -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_the_view_of_a_file_that_is_not_as_it_was_is_removed(places: Places, change: str) -> None:
    [file] = places.dirs[0].rglob("*.gguf")
    view = view_of(file, places.dirs[1] / VIEWS)
    complete(view)
    installed_models(places)
    assert view.is_dir()
    file.unlink() if change == "gone" else os.utime(file, (1, 1))
    assert len(installed_models(places)) == (change == "changed")
    assert not view.exists()
    left = [path.name for path in (places.dirs[1] / VIEWS).iterdir()]
    assert len(left) == (change == "changed") and view.name not in left
    assert file.exists() == (change == "changed")


def test_a_view_of_a_file_elsewhere_stays(places: Places, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    file = write_model(tmp_path / "elsewhere", "llama").file
    view = view_of(file, places.dirs[1] / VIEWS)
    installed_models(places)
    assert view.is_dir()


def test_nothing_but_views_is_removed(places: Places, tmp_path: Path) -> None:
    [file] = places.dirs[0].rglob("*.gguf")
    views = places.dirs[1] / VIEWS
    view = view_of(file, views)
    file.unlink()
    adapted, linked, plain = (views / f"{name}-{'0' * 12}" for name in ("a", "b", "c"))
    shutil.copytree(view, adapted, symlinks=True)
    (adapted / "adapters").mkdir()
    shutil.copytree(view, tmp_path / "outside", symlinks=True)
    linked.symlink_to(tmp_path / "outside")
    plain.mkdir()
    (plain / "omlx-00001-of-00001.gguf").write_text("a file, no link")
    other_name = view.rename(views / "mine")
    installed_models(places)
    assert all(path.exists() for path in (adapted, linked, plain, other_name))
    views.rename(tmp_path / "views")
    views.symlink_to(tmp_path / "views")
    shutil.copytree(other_name, views / view.name, symlinks=True)
    installed_models(places)
    assert (views / view.name).exists(), "the folder of views is a link"


def test_two_servers_remove_at_once(places: Places) -> None:
    [file] = places.dirs[0].rglob("*.gguf")
    views = places.dirs[1] / VIEWS
    for seconds in range(1, 21):
        os.utime(file, (seconds, seconds))
        view_of(file, views)
    file.unlink()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remove_old, [views] * 4))
    assert list(views.iterdir()) == []


def test_a_directory_that_can_not_be_written_to_is_listed(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    installed_models(places)
    [file] = places.dirs[0].rglob("*.gguf")
    file.unlink()
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert installed_models(places) == []


def write_unfit(path: Path, architecture: str) -> None:
    writer = GGUFWriter(path, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_family_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    write_unfit(tmp_path / "a.gguf", "mamba9")
    with pytest.raises(ModelUnavailable, match="its architecture is 'mamba9'; known are cohere2"):
        view_of(tmp_path / "a.gguf", tmp_path / "views")
    [model] = installed_models(Places((tmp_path,)))
    assert "'mamba9'" in model.problem and model.names == ("a",)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_unfit(tmp_path / "big-00001-of-00003.gguf", "llama")
    with pytest.raises(ModelUnavailable, match=r"has no big-00002-of-00003\.gguf"):
        view_of(tmp_path / "big-00001-of-00003.gguf", tmp_path / "views")


def test_a_file_of_the_users_is_not_removed(places: Places) -> None:
    [model] = installed_models(places)
    with pytest.raises(ModelUnavailable, match=r"tiny-qwen3\.gguf is a file of yours"):
        remove(model, places.dirs)
    assert installed_models(places)


def test_a_place_that_can_not_be_written_is_told(places: Places) -> None:
    (places.dirs[1] / VIEWS).touch()
    [model] = installed_models(places)
    assert "can't be made" in model.problem


def test_a_divided_file_is_one_model(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole", "qwen3")
    parts = write_model(tmp_path / "parts", "qwen3", most_tensors=9)
    places = Places((tmp_path, tmp_path / "own"))
    assert len(installed_models(places)) == 2
    first = parts.file
    assert first.name == "tiny-qwen3-00001-of-00003.gguf"
    views = [view_of(file, tmp_path / "own" / VIEWS) for file in (whole.file, first)]
    one, other = (load(view).model(mx.array([[1, 2, 3]])) for view in views)
    assert mx.array_equal(one, other)


def test_a_directory_that_goes_while_it_is_listed_is_none(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download has ended, or a model is removed, in between."""
    listed = os.scandir

    def gone(directory: Path) -> object:
        if directory.name == "org":
            raise FileNotFoundError(directory)
        return listed(directory)

    monkeypatch.setattr(os, "scandir", gone)
    assert not installed_models(places)
