"""The JSON files of a model directory that say how it is used. Code in it is never run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.errors import ModelUnavailable


@dataclass(frozen=True, slots=True)
class Module:
    """A step of sentence-transformers: the last part of its class name, and its folder."""

    kind: str
    path: str


def read_object(path: Path) -> dict[str, Any]:
    """Raises ModelUnavailable unless the file holds a JSON object."""
    value = _read(path)
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path} holds no JSON object")
    return value


def modules_in(directory: Path) -> list[Module]:
    """What modules.json lists; empty without the file."""
    path = directory / "modules.json"
    listed = _read(path) if path.is_file() else []
    try:
        modules = [Module(str(m["type"]).rpartition(".")[2], str(m["path"])) for m in listed]
    except (TypeError, KeyError) as error:
        raise ModelUnavailable(f"{path} lists no modules") from error
    root = directory.resolve()
    if not all((root / module.path).resolve().is_relative_to(root) for module in modules):
        raise ModelUnavailable(f"{path} points out of the directory")
    return modules


def max_tokens_in(directory: Path, most: int) -> int:
    """How much of a text the model was made for, at most `most`."""
    path = directory / "sentence_bert_config.json"
    value = read_object(path).get("max_seq_length") if path.is_file() else None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return min(most, value)
    return most


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path} can't be read: {error}") from error
