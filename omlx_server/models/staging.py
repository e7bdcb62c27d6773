"""Makes a directory that appears under its name whole or not at all.

    <models_dir>/.staging-<pid>-<random>/         scratch files
    <models_dir>/.staging-<pid>-<random>/model    becomes the final directory

Of several processes the first rename wins.
"""

import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from omlx_server.errors import NoPlaceForModels, system_errors_as
from omlx_server.models.adapters.registry import FOLDER

STAGING = ".staging-"
STALE_SECONDS = 24 * 3600
_PID = re.compile(r"\d{1,9}", re.ASCII)
_HINT = "Set models.dirs to a directory that you may write to."


@contextmanager
def staged(target: Path, is_complete: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a staging directory; rename its `model` to `target` at the end. Raises
    NoPlaceForModels."""
    with staging_directory(target.parent) as path:
        (path / "model").mkdir()
        yield path
        sync(path / "model")
        _publish(path / "model", target, path, is_complete)


@contextmanager
def staging_directory(models_dir: Path) -> Iterator[Path]:
    """Yield a new directory that is removed with all in it. Raises NoPlaceForModels."""
    problem = f"The models directory {models_dir} can't be written to"
    with system_errors_as(NoPlaceForModels, problem, _HINT):
        path = Path(tempfile.mkdtemp(prefix=f"{STAGING}{os.getpid()}-", dir=models_dir))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sync(directory: Path) -> None:
    """Flush all files, so that a power cut leaves no empty ones."""
    for path in [*directory.rglob("*"), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def prepare(models_dir: Path, name: str, disk_bytes: int) -> None:
    """Make the models directory and remove stale staging. Raises NoPlaceForModels, also for less
    than `disk_bytes` free."""
    problem = f"The models directory {models_dir} can't be made"
    with system_errors_as(NoPlaceForModels, problem, _HINT):
        models_dir.mkdir(parents=True, exist_ok=True)
    remove_stale(models_dir)
    free = shutil.disk_usage(models_dir).free
    if free < disk_bytes:
        raise NoPlaceForModels(
            f"{name} needs {disk_bytes / 1e9:.1f} GB of free disk, "
            f"{models_dir} has {free / 1e9:.1f} GB",
            hint="Free some space, or set models.dirs to a directory on another disk.",
        )


def remove_stale(models_dir: Path) -> None:
    """Remove staging directories of dead processes, and those a day old: pids may be reused."""
    for path in models_dir.glob(f"{STAGING}*"):
        pid = path.name.removeprefix(STAGING).partition("-")[0]
        old = time.time() - _modified(path) > STALE_SECONDS
        if old or (_PID.fullmatch(pid) and not psutil.pid_exists(int(pid))):
            shutil.rmtree(path, ignore_errors=True)


def _publish(model: Path, target: Path, staging: Path, is_complete: Callable[[Path], bool]) -> None:
    if target.exists() and not is_complete(target):
        # Files of a finished model are missing: it goes with the staging, but not its adapters.
        target.rename(staging / "damaged")
        adapters = staging / "damaged" / FOLDER
        if adapters.is_dir():
            adapters.rename(model / FOLDER)
    try:
        model.rename(target)
    except OSError as error:
        taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not (taken and is_complete(target)):
            raise


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
