"""Reads the JSON files of a model directory. Code in the directory is never run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.kind import SENTENCE_CONFIG, trained_length
from omlx_server.errors import ModelUnavailable


@dataclass(frozen=True, slots=True)
class PipelineModule:
    """A step of modules.json, such as `Pooling`, and the directory of its files."""

    kind: str
    path: str


def read_object(path: Path) -> dict[str, Any]:
    """Raises ModelUnavailable if the file holds no JSON object."""
    value = _read_json(path)
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path} holds no JSON object")
    return value


def modules_in(directory: Path) -> list[PipelineModule]:
    """Return the steps of modules.json, [] without that file. Raises ModelUnavailable."""
    path = directory / "modules.json"
    listed = _read_json(path) if path.is_file() else []
    try:
        modules = [
            PipelineModule(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in listed
        ]
    except (TypeError, KeyError) as error:
        raise ModelUnavailable(f"{path} lists no modules") from error
    root = directory.resolve()
    if not all((root / module.path).resolve().is_relative_to(root) for module in modules):
        raise ModelUnavailable(f"{path} points out of the directory")
    return modules


def max_tokens_in(directory: Path, most: int) -> int:
    """Return the trained length in tokens, at most `most`. Raises ModelUnavailable."""
    path = directory / SENTENCE_CONFIG
    return trained_length(read_object(path) if path.is_file() else {}, most)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path} can't be read: {error}") from error
