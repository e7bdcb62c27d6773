"""Tells what the model in a directory is for. Reads the disk each time; any thread."""

from pathlib import Path
from typing import Any

from omlx_server.core.model_files.kind import ModelKind, kind_of
from omlx_server.models import json_file


def kind_in(directory: Path, name: str = "") -> ModelKind:
    """The kind of the model in a directory. `name`: what the model is called, by default as its
    directory. Never raises: a config.json that can't be read gives Kind.UNKNOWN, which matters only
    when the model is to be loaded."""
    config = read_json(directory / "config.json")
    if not isinstance(config, dict):
        return ModelKind.UNKNOWN
    modules = read_json(directory / "modules.json")
    listed = modules if isinstance(modules, list) else []
    types = [str(module.get("type", "")) for module in listed if isinstance(module, dict)]
    return kind_of(config, [text.rpartition(".")[2] for text in types], name or directory.name)


def read_json(path: Path) -> Any:
    """The JSON value in a file; None for what can't be read, or is no file of a sane size."""
    try:
        return json_file.read(path)
    except json_file.PROBLEMS:
        return None
