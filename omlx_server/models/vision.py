"""Tells whether the model in a directory takes images. Never raises; any thread."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.vision import PREPROCESSORS, files_lack, has_vision, server_lacks
from omlx_server.errors import ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.kind import read_json
from omlx_server.models.safetensors_header import read_header


def tells_of_vision(directory: Path) -> bool:
    config = read_json(directory / "config.json")
    return isinstance(config, dict) and has_vision(config)


def lacks_for_images(directory: Path) -> str:
    """Return why a model's files don't allow images, as the end of a sentence; else ""."""
    config = read_json(directory / "config.json")
    if not isinstance(config, dict) or not has_vision(config):
        return files_lack({}, (), ())
    files = [name for name in PREPROCESSORS if (directory / name).is_file()]
    broken = [name for name in files if not isinstance(read_json(directory / name), dict)]
    lacks = files_lack(config, _tensor_names(directory), files)
    return lacks or (f"its {broken[0]} can't be read" if broken else "")


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
    """Return the merged image preprocessor configs."""
    found: dict[str, Any] = {}
    for name in PREPROCESSORS:
        said = read_json(directory / name)
        found = {**said, **found} if isinstance(said, dict) else found
    return found


def _tensor_names(directory: Path) -> Iterator[str]:
    index = read_json(directory / layout.INDEX)
    named = index.get("weight_map") if isinstance(index, dict) else None
    if isinstance(named, dict):
        yield from named
        return
    try:
        for file in layout.weight_files(directory):
            header = read_header(file)
            yield from header.tensors if header else ()
    except (ModelUnavailable, OSError, ValueError):
        return
