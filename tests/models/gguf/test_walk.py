"""A walk through directories of models looks into each once, and opens nothing."""

import os
from pathlib import Path

import pytest

from omlx_server.models.gguf.walk import walk
from tests.models.directories import make


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make(tmp_path / "mlx")
    make(tmp_path / "mlx" / "adapters" / "a")
    make(tmp_path / "org" / "inner")
    (tmp_path / "models--acme--m" / "snapshots" / "1").mkdir(parents=True)
    (tmp_path / "copy" / "models--acme--n").mkdir(parents=True)
    for name in ("top", "org/one", "org/inner/two", "org/x/big-00001-of-00002", "._top"):
        file = tmp_path / f"{name}.gguf"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"no head")
    (tmp_path / "org/x/big-00002-of-00002.gguf").touch()
    (tmp_path / "folder.gguf").mkdir()
    return tmp_path


def test_it_names_directories_and_files(root: Path) -> None:
    folders, files = walk([root, root / "nowhere"])
    assert [folder.names for folder in folders] == [
        ("acme/n", "n"),
        ("folder.gguf",),
        ("mlx",),
        ("acme/m", "m"),
        ("org/inner", "inner"),
        ("org/x", "x"),
    ]
    assert [file.names for file in files] == [
        ("top",),
        ("org/one", "one"),
        ("org/two", "two"),
        ("org/big-00001-of-00002", "big-00001-of-00002"),
    ]


def test_files_of_a_repository_are_named_by_their_types(tmp_path: Path) -> None:
    names = ("org/name/a-Q4_K_M", "org/name/Q8_0/b-00001-of-00002", "org/name/deep/c-Q4_0")
    for name in (*names, "org/name/mmproj-F16", "org/Q4_0/d"):
        file = tmp_path / f"{name}.gguf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert [file.names for file in walk([tmp_path])[1]] == [
        ("org/d", "d"),
        ("org/name:Q4_K_M", "name:Q4_K_M", "org/a-Q4_K_M", "a-Q4_K_M"),
        ("org/name:Q8_0", "name:Q8_0", "org/b-00001-of-00002", "b-00001-of-00002"),
    ]


def test_it_looks_into_each_directory_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir, seen = os.scandir, []

    def noted(path: Path) -> object:
        seen.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    (root / "copy" / "models--acme--n").rmdir()
    walk([root])
    assert str(root / "org" / "x") in seen and len(seen) == len(set(seen))
