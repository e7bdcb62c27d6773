"""Finds the weight files of a model. Any thread."""

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
    """Return the files that the index names, else model*.safetensors. Raises ModelUnavailable."""
    index = directory / INDEX
    if not index.is_file():
        return sorted(directory.glob("model*.safetensors"))
    try:
        return [directory / name for name in indexed(json.loads(index.read_bytes()))]
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{index} can't be read: {one_line(error)}") from error


def lazy_weights(directory: Path) -> dict[str, mx.array]:
    """Return all arrays, not read yet. Raises ModelUnavailable."""
    arrays: dict[str, mx.array] = {}
    for file in weight_files(directory):
        try:
            loaded: Any = mx.load(str(file))
        except (OSError, ValueError, RuntimeError) as error:
            raise ModelUnavailable(f"can't read {file}: {one_line(error)}") from error
        arrays.update(loaded)
    return arrays


@contextmanager
def view_of(directory: Path) -> Iterator[Path]:
    """Yield a directory with the right files only for mlx-lm, which reads every
    model*.safetensors. It is `directory` itself, or has links to its files."""
    left_out = set(directory.glob("model*.safetensors")) - set(weight_files(directory))
    if not _is_missing_or_object(directory / _GENERATION):
        left_out.add(directory / _GENERATION)
    if not left_out:
        yield directory
        return
    with TemporaryDirectory(prefix="omlx-") as view:
        for file in set(directory.iterdir()) - left_out:
            Path(view, file.name).symlink_to(file.absolute())
        yield Path(view)


def _is_missing_or_object(file: Path) -> bool:
    """Return whether a file is not there, or holds a JSON object."""
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RecursionError):
        return False
