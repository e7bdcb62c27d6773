"""Removes a model from the disk. It is moved aside first, so that no half model keeps its name."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from omlx_server.errors import ModelUnavailable, NoPlaceForModels, system_errors_as
from omlx_server.models import layout, staging
from omlx_server.models.hub import hub
from omlx_server.models.hub.download import DOWNLOADS, PARTS, is_locked, lock_of
from omlx_server.models.installed import Installed, ModelOrigin


def size_of(directory: Path) -> int:
    """Return the bytes that removing frees; hard links count once."""
    sizes = {}
    for root, _, files in os.walk(directory):
        for name in files:
            stat = (Path(root) / name).lstat()
            sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())


def freed_by(model: Installed) -> int:
    return size_of(hub.folder_of(model.path))


def remove(model: Installed, dirs: Sequence[Path]) -> int:
    """Return the bytes that are freed. Raises ModelUnavailable for a model outside all
    directories of models, or one that can't be removed."""
    root = None if model.source is ModelOrigin.HUB else _root_of(model.path, dirs)
    problem = f"{model.path} can't be removed"
    with system_errors_as(NoPlaceForModels, problem, "Look at who owns it."):
        if is_locked(lock_of(model.names[0], root)):
            raise ModelUnavailable(f"{model.names[0]} is being downloaded", hint="Stop that first.")
        freed = freed_by(model)
        if root is None:
            hub.HUB.delete(model.names[0])
        else:
            _remove_below(root, hub.folder_of(model.path))
    return freed


def _root_of(path: Path, dirs: Sequence[Path]) -> Path:
    if (file := layout.real_path(path)) != path:
        raise ModelUnavailable(f"{file} is a file of yours, so it stays", hint="Remove it by hand.")
    for root in dirs:
        directory = root.expanduser()
        inside = not path.is_symlink() and path.resolve().is_relative_to(directory.resolve())
        if inside and path.is_relative_to(directory) and path != directory:
            return directory
    raise ModelUnavailable(
        f"{path} lies, or leads, outside of models.dirs, so it stays",
        hint="Remove it by hand if it is yours.",
    )


def _remove_below(root: Path, path: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f"{staging.STAGING}{os.getpid()}-", dir=root))
    try:
        path.rename(aside / "model")
    finally:
        shutil.rmtree(aside)
    if path.parent != root and not any(path.parent.iterdir()):
        path.parent.rmdir()  # its organisation has no other model
    _remove_parts(root / DOWNLOADS)


def _remove_parts(downloads: Path) -> None:
    """Remove the parts when no download is left: they are named by their contents."""
    is_unused = downloads.is_dir() and all(path.name == PARTS for path in downloads.iterdir())
    if is_unused and not any(map(is_locked, (downloads / PARTS).glob("*.lock"))):
        shutil.rmtree(downloads)
