"""One value: checked, described in words that are made from its field, and written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_server.errors import ConfigError
from omlx_server.settings.fields import Field, Section
from omlx_server.settings.sections import FIELDS, Settings
from omlx_server.settings.sizes import format_size
from omlx_server.settings.types import IsSize, Live, Says, Secret, number

SECRETS = ("auth.api_keys", "cache.remote")
BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as one layer gives it. Texts of flags and env are not typed yet."""

    value: object
    origin: str
    is_text: bool


def checked(dotted: str, entry: Entry) -> object:
    field = FIELDS[dotted]
    value = typed(str(entry.value), field.default) if entry.is_text else entry.value
    return valid(dotted, field, value, entry)


def valid(dotted: str, field: Field, value: object, entry: Entry) -> object:
    """`value` as the field takes it; `entry` is what it was made of.

    Raises:
        ConfigError: it does not take it.
    """
    try:
        return field.taken(value)
    except ValueError:
        is_secret = dotted in SECRETS or dotted.startswith("auth.")
        got = "" if is_secret else f", not {_shown(entry.value)}"
        raise ConfigError(f"{dotted}: expected {words_of(field)}{got} ({entry.origin})") from None


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
        return from_json(stripped)
    return text


def _list(text: str) -> object:
    """A JSON array, or items between commas or on lines of their own."""
    if not text.startswith("["):
        lines = filter(str.strip, text.split("\n"))
        return [item.strip() for line in lines for item in line.split(",")]
    return from_json(text)


def from_json(text: str) -> object:
    """Or the text itself, if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def value_of(settings: Settings, dotted: str) -> object:
    section, _, key = dotted.partition(".")
    return getattr(getattr(settings, section), key)


def plain(value: object) -> object:
    """As JSON can hold it: of tables what was said, numbers without a needless fraction."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        # An argument of a template stays as it is: 1.0 prints otherwise than 1.
        return {k: plain(v) if isinstance(v, Section) else v for k, v in value.items()}
    if isinstance(value, Section):
        items = {name: plain(item) for name, item in value}
        return {name: item for name, item in items.items() if item is not None and item != {}}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value) if isinstance(value, Path | Secret) else value


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def expected(dotted: str) -> str:
    """What a key takes, in words."""
    return words_of(FIELDS[dotted])


def words_of(field: Field) -> str:
    """What a field takes. Made from the field itself, so that it can't drift from it."""
    if says := field.mark(Says):
        return str(says)
    schema = schema_of(field)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if field.mark(IsSize):
        low, high = format_size(schema["minimum"]), format_size(schema["maximum"])
        return f'bytes or a size like "8MiB", from {low} to {high}'
    words = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
    words |= {"object": 'a table, as {"name": 1}'}
    kind = "object" if field.is_table else schema.get("type", "")
    return words.get(kind, "a text") + _bounds(schema)


def schema_of(field: Field) -> Mapping[str, Any]:
    """The JSON schema of what it takes, without the null of what may be left out."""
    schema = field.schema()
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema


def _bounds(schema: Mapping[str, Any]) -> str:
    above = f" above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else ""
    above += f" up to {schema['maximum']}" if above else ""
    bounds = f" from {schema['minimum']} to {schema['maximum']}" if "minimum" in schema else above
    return bounds + (f" in steps of {schema['multipleOf']}" if "multipleOf" in schema else "")


def is_size(dotted: str) -> bool:
    return dotted in FIELDS and FIELDS[dotted].mark(IsSize) is not None


def live(dotted: str) -> str:
    """How far a change of it applies while the server runs, in words; empty when not at all."""
    return FIELDS[dotted].mark(Live) or ""
