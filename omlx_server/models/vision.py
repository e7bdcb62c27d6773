"""Tells whether the model in a directory takes images. Reads small files and headers of weights;
any thread. Never raises: a file that can't be read says nothing."""

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
    """Whether config.json describes a vision tower, of whatever family."""
    config = read_json(directory / "config.json")
    return isinstance(config, dict) and has_vision(config)


def lacks_for_images(directory: Path) -> str:
    """Why the files of a model don't allow it to take images, as the end of a sentence; empty when
    they do."""
    config = read_json(directory / "config.json")
    if not isinstance(config, dict) or not has_vision(config):
        return files_lack({}, (), ())
    files = [name for name in PREPROCESSORS if (directory / name).is_file()]
    broken = [name for name in files if not isinstance(read_json(directory / name), dict)]
    lacks = files_lack(config, _tensor_names(directory), files)
    return lacks or (f"its {broken[0]} can't be read" if broken else "")


def why_no_images(directory: Path, *, enabled: bool, uses_heads: bool) -> str:
    """As `lacks_for_images`, and why this server would not let it, if its files do. `enabled` is
    the setting `images.enabled`; with `uses_heads` heads of the model draft for it."""
    return lacks_for_images(directory) or server_lacks(
        enabled=enabled, has_pillow=has_pillow(), uses_heads=uses_heads
    )


def has_pillow() -> bool:
    """Whether Pillow is installed, which decodes images: the extra `vision`."""
    try:
        return bool(metadata.version("pillow"))
    except metadata.PackageNotFoundError:
        return False


def preprocessor_config(directory: Path) -> dict[str, Any]:
    """What the files of a model say of the preparation of its images; empty if nothing."""
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
