"""Moves a newer version's files into the directory of a model, when all are here and checked.

    <dir>/.downloads/.ready-models--<org>--<name>/    what goes into <dir>/<org>/<name>

Meanwhile the model has no config.json, so nobody loads a mixture. Only the holder of the model's
lock calls this.
"""

import errno
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from omlx_server.models import json_file, layout
from omlx_server.models.staging import sync

_CONFIG = "config.json"
_GONE = ".gone.json"
# huggingface_hub's notes of its downloads into a directory.
_NOTES, _NOTE_END = Path(".cache", "huggingface", "download"), ".metadata"


def publish(staged: Path, ready: Path, target: Path, names: Collection[str]) -> None:
    """Move the files below `staged` into `target`, and remove the earlier version's that are not
    among `names`. Raises OSError if `target` is on another disk."""
    if staged.stat().st_dev != target.stat().st_dev:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    gone = list(_gone(target, names))
    if not gone and all(_is_note(file.relative_to(staged)) for file in _files(staged)):
        shutil.rmtree(staged)  # nothing has changed
        return
    (staged / _GONE).write_text(json.dumps(gone))
    sync(staged)
    staged.rename(ready)
    finish(ready, target)


def finish(ready: Path, target: Path) -> None:
    """Complete what `publish` has begun."""
    if target.is_dir() and ready.is_dir():
        config = target / _CONFIG
        if (ready / _CONFIG).exists():
            config.unlink(missing_ok=True)
        elif config.exists():
            config.rename(ready / _CONFIG)
        if (ready / _GONE).exists():
            for name in json_file.read(ready / _GONE):
                (target / name).unlink(missing_ok=True)
        for file in sorted(_files(ready), key=lambda file: file == ready / _CONFIG):
            if file.name != _GONE:
                new = target / file.relative_to(ready)
                new.parent.mkdir(parents=True, exist_ok=True)
                file.replace(new)
    shutil.rmtree(ready, ignore_errors=True)


def add(staged: Path, target: Path, names: Sequence[str]) -> None:
    """Move those of the files that have come beside the others, the first one last: a GGUF model is
    listed by it."""
    for name in reversed(names):
        if (staged / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).replace(target / name)
    shutil.rmtree(staged, ignore_errors=True)


def remove_others(staged: Path, names: Collection[str]) -> None:
    for file in _files(staged):
        path = file.relative_to(staged)
        if not (path.as_posix() in names or _is_note(path)):
            file.unlink()


def _gone(target: Path, names: Collection[str]) -> Iterator[str]:
    for file in [*target.glob("model*.safetensors"), *target.glob(layout.INDEX)]:
        if file.name not in names:
            yield file.name
    for note in _files(target / _NOTES):
        name = note.relative_to(target / _NOTES).as_posix().removesuffix(_NOTE_END)
        if note.suffix == _NOTE_END and name not in names:
            yield from (name, note.relative_to(target).as_posix())


def _is_note(path: Path) -> bool:
    return path.parts[0] == _NOTES.parts[0]


def _files(directory: Path) -> Iterable[Path]:
    with suppress(OSError):
        return [path for path in directory.rglob("*") if not path.is_dir()]
    return []
