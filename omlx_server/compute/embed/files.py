"""Reads the JSON files of a model directory that say how to use the model. Never runs code that the
directory carries."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.core.model_files.encoder_length import SENTENCE_CONFIG, trained_length
from omlx_server.errors import ModelUnavailable


@dataclass(frozen=True, slots=True)
class PipelineModule:
    """A step in sentence-transformers' modules.json: `kind` is the last part of its class name,
    `path` its folder in the model directory."""

    kind: str
    path: str


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelUnavailable if it can't be read or is no object."""
    value = _read(path)
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path} holds no JSON object")
    return value


def modules_in(directory: Path) -> list[PipelineModule]:
    """The steps that modules.json lists; empty without that file. Raises ModelUnavailable if the
    list makes no sense, or if a step's folder is outside of the model directory."""
    path = directory / "modules.json"
    listed = _read(path) if path.is_file() else []
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
    """How many tokens of a text the model was trained for, but no more than `most`; `most` where
    its files do not say. Raises ModelUnavailable if sentence_bert_config.json can't be read."""
    path = directory / SENTENCE_CONFIG
    return trained_length(read_object(path) if path.is_file() else {}, most)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path} can't be read: {error}") from error
