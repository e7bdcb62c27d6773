"""Walks through directories of models, each once. Opens no file, and imports little: completion
does this, too."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from omlx_server.core.model_files.gguf_names import is_first, tag_of, type_in
from omlx_server.models.catalogue import names_of
from omlx_server.models.hub.names import repo_id_of
from omlx_server.models.other_programs import NamedPath


def walk(dirs: Sequence[Path]) -> tuple[list[NamedPath], list[NamedPath]]:
    """Return what may be model directories, also folders of a hub's cache, and the GGUF files:
    FILE, NAME/FILE, ORG/NAME/FILE, ORG/NAME/TYPE/FILE and those in a hub's cache."""
    folders: list[NamedPath] = []
    files: list[NamedPath] = []
    for root in dirs:
        children, at_root = _look(root.expanduser())
        files += _named(at_root)
        for child in children:
            if repo_id := repo_id_of(child):
                folders.append(_below(child, repo_id))
                files += _cached(child, repo_id)
                continue
            inner, at_child = _look(child)
            if any(map(repo_id_of, inner)):
                cache = walk([child])
                folders += cache[0]
                files += cache[1]
                continue
            files += _named(at_child, child.name)
            folders += _models_at(child, inner)
            for folder in inner:
                files += _in_repository(folder, f"{child.name}/{folder.name}")
    return folders, files


def is_model(file: Path) -> bool:
    return is_first(file.name) and file.is_file()


def _models_at(child: Path, inner: Sequence[Path]) -> list[NamedPath]:
    if not inner or os.path.isfile(child / "config.json"):  # noqa: PTH113
        return [NamedPath(child, names_of(child.name))]
    return [_below(path, f"{child.name}/{path.name}") for path in inner]


def _cached(folder: Path, repo_id: str) -> list[NamedPath]:
    """Return the GGUF files of all snapshots, the newest of each name."""
    snapshots = sorted(_look(folder / "snapshots")[0], key=_changed, reverse=True)
    newest = dict[str, NamedPath]()
    for snapshot in snapshots:
        for file in _in_repository(snapshot, repo_id):
            newest.setdefault(file.names[0], NamedPath(file.path, file.names[:2]))
    return list(newest.values())


def _in_repository(folder: Path, name: str) -> Iterator[NamedPath]:
    """Yield the GGUF files of a repository, named by it and their tags."""
    inner, files = _look(folder)
    for path in inner:
        if type_in(path.name):
            files += _look(path)[1]
    for file in _named(files, name.partition("/")[0]):
        tag = tag_of(file.path.relative_to(folder).as_posix())
        yield replace(file, names=_names(f"{name}:{tag}") + file.names) if tag else file


def _below(path: Path, name: str) -> NamedPath:
    return NamedPath(path, _names(name))


def _names(name: str) -> tuple[str, str]:
    return name, name.rpartition("/")[2]


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


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _has_a_name(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.name.isprintable()
