"""Reads the description of a model from the JSON files of its directory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from omlx_server.core.model_files.kind import (
    SENTENCE_CONFIG,
    first_position,
    trained_length,
)
from omlx_server.core.model_files.kv_size import token_bytes
from omlx_server.core.request import NumberRange, SamplingPresets
from omlx_server.errors import ModelUnavailable
from omlx_server.models import json_file

_CONTEXT_KEYS = ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length")
_DEFAULT_CONTEXT = 1 << 15


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Lengths in tokens; without a `said_length`, `context_length` is a guess. `token_bytes` of
    keys and values. `ignored` says why generation_config.json can't be read."""

    model_type: str
    context_length: int
    recommended: Mapping[str, float]
    said_length: int | None = None
    token_bytes: int | None = None
    ignored: str = ""


def describe(directory: Path) -> ModelDescription:
    """Read config.json and generation_config.json. Raises ModelUnavailable for a bad
    config.json."""
    if not (directory / "config.json").is_file():
        raise ModelUnavailable(f"{directory} has no config.json", hint="is this a language model?")
    config = _read(directory / "config.json")
    text = {**config, **_object(config.get("text_config"))}
    lengths = (text.get(key) for key in _CONTEXT_KEYS)
    length = next((n for n in lengths if isinstance(n, int) and n > 0), None)
    ignored, generation = "", dict[str, Any]()
    try:
        generation = _read(directory / "generation_config.json")
    except ModelUnavailable as error:
        ignored = error.message
    return ModelDescription(
        model_type=str(config.get("model_type", "")),
        context_length=length or _DEFAULT_CONTEXT,
        recommended=_recommended(generation),
        said_length=length,
        token_bytes=token_bytes(config),
        ignored=ignored,
    )


def described(directory: Path) -> ModelDescription | None:
    """Return None where `describe` raises."""
    try:
        return describe(directory)
    except (ModelUnavailable, OSError):
        return None


def encoder_length(directory: Path) -> int | None:
    try:
        config = _read(directory / "config.json")
        trained = _read(directory / SENTENCE_CONFIG)
    except (ModelUnavailable, OSError):
        return None
    about = described(directory)
    if about is None or about.said_length is None:
        return None
    return trained_length(trained, about.said_length - first_position(config))


def _recommended(generation: Mapping[str, Any]) -> dict[str, float]:
    if generation.get("do_sample") is False:
        return {}
    hints = get_type_hints(SamplingPresets, include_extras=True)
    values = {name: _number(generation.get(name), *get_args(hint)) for name, hint in hints.items()}
    return {name: value for name, value in values.items() if value is not None}


def _number(value: Any, kind: type[float], bounds: NumberRange) -> float | None:
    valid = isinstance(value, kind | int) and not isinstance(value, bool)
    return kind(value) if valid and bounds.hold(value) else None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json_file.read(path)
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
        return content
    except json_file.PROBLEMS as error:
        raise ModelUnavailable(f"{path} can't be read: {error}") from error


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
