"""Removes a model from the disk. It is moved aside first, so that no half model keeps its name."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from omlx_server.errors import ModelUnavailable, NoPlaceForModels, system_errors_as
from omlx_server.models import layout, staging
from omlx_server.models.hub import hub
from omlx_server.models.hub.download import DOWNLOADS, PARTS, is_locked, lock_of
from omlx_server.models.hub.names import hub_name
from omlx_server.models.installed import Installed, ModelOrigin
from omlx_server.models.other_programs import program_of


def size_of(directory: Path) -> int:
    """Return the bytes that removing frees; hard links count once."""
    sizes = {}
    for root, _, files in os.walk(directory):
        for name in files:
            stat = (Path(root) / name).lstat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def disk_bytes(path: Path) -> int:
    """Return the bytes of a listed model."""
    files = layout.gguf_files(path)
    return sum(file.stat().st_size for file in files) or size_of(
        hub.folder_of(path)
    )  # a snapshot is links


def remove(model: Installed, dirs: Sequence[Path]) -> int:
    """Return the bytes that are freed. Raises ModelUnavailable for a model outside all
    directories of models, or one that can't be removed."""
    files = layout.gguf_files(model.path)
    root = None if model.source is ModelOrigin.HUB else _root_of(model, files, dirs)
    problem = f"{model.path} can't be removed"
    with system_errors_as(NoPlaceForModels, problem, "Look at who owns it."):
        if any(is_locked(lock_of(name, root)) for name in model.names):
            raise ModelUnavailable(f"{model.names[0]} is being downloaded", hint="Stop that first.")
        freed = disk_bytes(model.path)
        if files:
            _remove_files(root, files)
            if model.path.is_dir():
                shutil.rmtree(model.path)
        elif root is None:
            hub.HUB.delete(model.names[0])
        else:
            _remove_below(root, [hub.folder_of(model.path)])
    return freed


def _root_of(model: Installed, files: Sequence[Path], dirs: Sequence[Path]) -> Path:
    path = files[0] if files else model.path
    if files and (program_of(path) or not any(map(_is_at_hub, model.names))):
        raise ModelUnavailable(f"{path} is a file of yours, so it stays", hint="Remove it by hand.")
    for root in dirs:
        directory = root.expanduser().resolve() if files else root.expanduser()
        inside = not path.is_symlink() and path.resolve().is_relative_to(directory.resolve())
        if inside and path.is_relative_to(directory) and path != directory:
            return directory
    raise ModelUnavailable(
        f"{path} lies, or leads, outside of models.dirs, so it stays",
        hint="Remove it by hand if it is yours.",
    )


def _is_at_hub(name: str) -> bool:
    on_hub = hub_name(name)
    return on_hub is not None and bool(on_hub.tag)


def _remove_files(root: Path | None, files: Sequence[Path]) -> None:
    """Remove the parts of a GGUF model; in a hub's cache with the links to them."""
    folder = hub.folder_with(files[0])
    if folder is not None:
        hub.remove_files(folder, files)
    elif root is not None:
        _remove_below(root, files)


def _remove_below(root: Path, paths: Iterable[Path]) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f"{staging.STAGING}{os.getpid()}-", dir=root))
    try:
        for number, path in enumerate(paths):
            path.rename(aside / str(number))
    finally:
        shutil.rmtree(aside)
    for parent in path.parents[: -len(root.parts)]:
        with suppress(OSError):  # it has other models
            parent.rmdir()
    _remove_parts(root / DOWNLOADS)


def _remove_parts(downloads: Path) -> None:
    """Remove the parts when no download is left: they are named by their contents."""
    is_unused = downloads.is_dir() and all(path.name == PARTS for path in downloads.iterdir())
    if is_unused and not any(map(is_locked, (downloads / PARTS).glob("*.lock"))):
        shutil.rmtree(downloads)
