"""What a model's directory says of the model, read from its JSON files without loading weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.errors import ModelUnavailable
from omlx_server.models import json_file

_CONTEXT_KEYS = ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length")
_DEFAULT_CONTEXT = 1 << 15


@dataclass(frozen=True, slots=True)
class Recommended:
    """Sampling that the model's makers recommend (generation_config.json). None: they don't say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """What a model's files say of it. Lengths are in tokens; `said_length` is None where the files
    don't say one, and then `context_length` is a guess."""

    model_type: str
    context_length: int
    recommended: Recommended
    said_length: int | None = None


def describe(directory: Path) -> Description:
    """Read config.json and generation_config.json.

    Raises:
        ModelUnavailable: there is no config.json, or one of them can't be read.
    """
    if not (directory / "config.json").is_file():
        raise ModelUnavailable(f"{directory} has no config.json", hint="is this a language model?")
    config = _read(directory / "config.json")
    text = {**config, **_object(config.get("text_config"))}
    lengths = (text.get(key) for key in _CONTEXT_KEYS)
    said = next((n for n in lengths if isinstance(n, int) and n > 0), None)
    return Description(
        model_type=str(config.get("model_type", "")),
        context_length=said or _DEFAULT_CONTEXT,
        recommended=_recommended(_read(directory / "generation_config.json")),
        said_length=said,
    )


def _recommended(generation: Mapping[str, Any]) -> Recommended:
    if generation.get("do_sample") is False:
        return Recommended()
    top_k = generation.get("top_k")
    return Recommended(
        temperature=_number(generation, "temperature", 0, 2),
        top_p=_number(generation, "top_p", 0, 1),
        top_k=top_k if isinstance(top_k, int) and top_k >= 0 else None,
        min_p=_number(generation, "min_p", 0, 1),
        repetition_penalty=_number(generation, "repetition_penalty", 0.1, 10),
    )


def _number(source: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    value = source.get(key)
    valid = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if valid and low <= value <= high else None  # type: ignore[operator, arg-type]


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return _object(json_file.read(path))
    except json_file.PROBLEMS as error:
        raise ModelUnavailable(f"{path} can't be read: {error}") from error


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
