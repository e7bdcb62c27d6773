"""Finds the files of a model that count. Any thread."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from omlx_server.core.model_files.weights import INDEX, indexed
from omlx_server.errors import ModelUnavailable, one_line

_GENERATION = "generation_config.json"


def weight_files(directory: Path) -> list[Path]:
    """The paths of the files of weights: those that the index names, else model*.safetensors.
    Raises ModelUnavailable for an index that can't be read."""
    index = directory / INDEX
    if not index.is_file():
        return sorted(directory.glob("model*.safetensors"))
    try:
        return [directory / name for name in indexed(json.loads(index.read_bytes()))]
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{index} can't be read: {one_line(error)}") from error


def lazy_weights(directory: Path) -> dict[str, mx.array]:
    """All arrays of the files of weights by their names, not read yet. Raises ModelUnavailable for
    a file that can't be read."""
    found: dict[str, mx.array] = {}
    for file in weight_files(directory):
        try:
            loaded: Any = mx.load(str(file))
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelUnavailable(f"can't read {file}: {one_line(error)}") from error
        found.update(loaded)
    return found


@contextmanager
def view_of(directory: Path) -> Iterator[Path]:
    """A directory as mlx-lm may read it, which takes all that is called model*.safetensors: one of
    links to those files of `directory` that count, if others are there. Arrays that were opened
    within can be read after its end."""
    ignored = set(directory.glob("model*.safetensors")) - set(weight_files(directory))
    if not _is_object(directory / _GENERATION):
        ignored.add(directory / _GENERATION)
    if not ignored:
        yield directory
        return
    with TemporaryDirectory(prefix="omlx-") as view:
        for file in set(directory.iterdir()) - ignored:
            Path(view, file.name).symlink_to(file.absolute())
        yield Path(view)


def _is_object(file: Path) -> bool:
    """Whether a file holds a JSON object, or is not there."""
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RecursionError):
        return False
