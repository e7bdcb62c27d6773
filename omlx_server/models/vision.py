"""Tells whether the model in a directory takes images. Never raises; any thread."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.vision import PREPROCESSORS, files_lack, has_vision, server_lacks
from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.json_file import read_json, read_object
from omlx_server.models.safetensors_header import read_header


def tells_of_vision(directory: Path) -> bool:
    return has_vision(read_object(directory / "config.json"))


def lacks_for_images(directory: Path) -> str:
    """Return why a model's files don't allow images, as the end of a sentence; else ""."""
    config = read_object(directory / "config.json")
    files = [name for name in PREPROCESSORS if (directory / name).is_file()]
    if lacks := files_lack(config, _tensor_names(directory), files):
        return lacks
    broken = [name for name in files if not isinstance(read_json(directory / name), dict)]
    return f"its {broken[0]} can't be read" if broken else ""


def why_no_images(directory: Path, *, enabled: bool, uses_heads: bool) -> str:
    """Return why there are no images, by the model's files or by this server."""
    return lacks_for_images(directory) or server_lacks(
        enabled=enabled, has_pillow=has_pillow(), uses_heads=uses_heads
    )


def has_pillow() -> bool:
    try:
        return bool(metadata.version("pillow"))
    except metadata.PackageNotFoundError:
        return False


def preprocessor_config(directory: Path) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name in PREPROCESSORS:
        merged = {**read_object(directory / name), **merged}
    return merged


def _tensor_names(directory: Path) -> Iterator[str]:
    names = read_object(directory / layout.INDEX).get("weight_map")
    if isinstance(names, dict):
        yield from names
        return
    try:
        for file in layout.weight_files(directory):
            header = read_header(file)
            yield from header.tensors if header else ()
    except (ModelUnavailable, OSError, ValueError):
        return
