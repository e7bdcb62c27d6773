"""One value: checked, and described in words that are made from its field."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from omlx_server.errors import ConfigError
from omlx_server.settings.sections import FIELDS
from omlx_server.settings.types import IsSize, Live, Says, format_size, number

BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as one layer gives it. Texts of flags and env are not typed yet."""

    value: object
    origin: str
    is_text: bool


def checked(dotted: str, entry: Entry) -> object:
    field = FIELDS[dotted]
    default = field.get_default(call_default_factory=True)
    value = typed(str(entry.value), default) if entry.is_text else entry.value
    try:
        return _adapter(field).validate_python(value, strict=True)
    except ValidationError:
        got = "" if dotted.startswith("auth.") else f", not {_shown(entry.value)}"
        raise ConfigError(f"{dotted}: expected {expected(dotted)}{got} ({entry.origin})") from None


def _adapter(field: FieldInfo) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[field.annotation, field])  # type: ignore[arg-type]


def typed(text: str, default: object) -> object:
    """`text` as the type of the key's default; or as it is, for the validator to refuse."""
    stripped = text.strip()
    if isinstance(default, bool):
        return BOOLS.get(stripped.lower(), text)
    if isinstance(default, int | float):
        return number(stripped)
    if isinstance(default, tuple):
        return _list(stripped)
    if isinstance(default, dict):
        return _json(stripped)
    return text


def _list(text: str) -> object:
    """A JSON array, or items between commas."""
    if not text.startswith("["):
        return [item.strip() for item in text.split(",")] if text else []
    return _json(text)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def expected(dotted: str) -> str:
    """What a key takes, in words. Made from the field itself, so that it can't drift from it."""
    field = FIELDS[dotted]
    for mark in field.metadata:
        if isinstance(mark, Says):
            return str(mark)
    schema = _adapter(field).json_schema()
    if "enum" in schema:
        return "one of " + ", ".join(schema["enum"])
    if is_size(dotted):
        low, high = format_size(schema["minimum"]), format_size(schema["maximum"])
        return f'bytes or a size like "8MiB", from {low} to {high}'
    words = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
    return words.get(schema["type"], "a text") + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    bounds = f" from {schema['minimum']} to {schema['maximum']}" if "minimum" in schema else ""
    return bounds + (f" in steps of {schema['multipleOf']}" if "multipleOf" in schema else "")


def is_size(dotted: str) -> bool:
    return any(isinstance(mark, IsSize) for mark in FIELDS[dotted].metadata)


def live(dotted: str) -> str:
    """How far a change of it applies while the server runs, in words; empty when not at all."""
    return next((str(m) for m in FIELDS[dotted].metadata if isinstance(m, Live)), "")
