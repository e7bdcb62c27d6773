"""Walks through directories of models, each once. Opens no file, and imports little: completion
does this, too."""

import os
from collections.abc import Sequence
from pathlib import Path

from omlx_server.models.catalogue import names_of
from omlx_server.models.gguf.names import is_model
from omlx_server.models.hub.names import repo_id_of
from omlx_server.models.other_programs import NamedPath


def walk(dirs: Sequence[Path]) -> tuple[list[NamedPath], list[NamedPath]]:
    """Return what may be model directories, also folders of a hub's cache, and the GGUF files:
    FILE, NAME/FILE and ORG/NAME/FILE."""
    folders: list[NamedPath] = []
    files: list[NamedPath] = []
    for root in dirs:
        children, at_root = _look(root.expanduser())
        files += _named(at_root)
        for child in children:
            if repo_id := repo_id_of(child):
                folders.append(_below(child, repo_id))
                continue
            inner, at_child = _look(child)
            files += _named(at_child, child.name)
            folders += _models_at(child, inner)
            for folder in inner:
                files += _named(_look(folder)[1], child.name)
    return folders, files


def _models_at(child: Path, inner: Sequence[Path]) -> list[NamedPath]:
    if not inner or os.path.isfile(child / "config.json"):  # noqa: PTH113
        return [NamedPath(child, names_of(child.name))]
    if any(map(repo_id_of, inner)):
        return walk([child])[0]
    return [_below(path, f"{child.name}/{path.name}") for path in inner]


def _below(path: Path, name: str) -> NamedPath:
    return NamedPath(path, (name, name.rpartition("/")[2]))


def _named(files: Sequence[Path], folder: str = "") -> list[NamedPath]:
    return [_below(f, f"{folder}/{f.stem}") if folder else NamedPath(f, (f.stem,)) for f in files]


def _look(directory: Path) -> tuple[list[Path], list[Path]]:
    """Return the subdirectories and the GGUF models of a directory, sorted."""
    try:
        with os.scandir(directory) as entries:
            rows = sorted((e.name, _is_directory(e)) for e in entries if _has_a_name(e))
    except OSError:
        return [], []
    folders = [directory / name for name, is_directory in rows if is_directory]
    files = (directory / name for name, is_directory in rows if not is_directory)
    return folders, list(filter(is_model, files))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _has_a_name(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.name.isprintable()
