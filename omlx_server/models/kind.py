"""Tells the kind of the model in a directory. Any thread."""

from pathlib import Path

from omlx_server.core.model_files.kind import ModelKind, kind_of
from omlx_server.models.json_file import read_json


def kind_in(directory: Path, name: str = "") -> ModelKind:
    """Return the kind of a model called `name`, by default as its directory."""
    config = read_json(directory / "config.json")
    if not isinstance(config, dict):
        return ModelKind.UNKNOWN
    modules = read_json(directory / "modules.json")
    listed = modules if isinstance(modules, list) else []
    types = [str(module.get("type", "")) for module in listed if isinstance(module, dict)]
    return kind_of(config, [text.rpartition(".")[2] for text in types], name or directory.name)
