"""Checks a value of a setting, describes the values of a key, and prepares them for output."""

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omlx_server.errors import ConfigError
from omlx_server.settings import types
from omlx_server.settings.fields import Field, Section
from omlx_server.settings.sections import FIELDS, Settings
from omlx_server.settings.types import ByteSize, Live, Secret, format_size, parse_number

SECRETS = ("auth.api_keys", "cache.remote", "cluster.secret")
_NUMBER_TYPES = {"integer", "number"}
_UNITS = {"seconds": "s", "days": "days", "tokens": "tokens"}
_TRUE_OR_FALSE = ("true", "false")
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


# Words that people search for and that the texts lack, by the beginnings of keys.
_SEARCH_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "server.host": "network lan phone remote bind",
        "server.request_timeout": "slow hang",
        "process.keep_awake": "power battery energy",
        "auth.": "password login security",
        "models.dirs": "disk folder storage download",
        "models.use_hf_cache": "disk download",
        "models.idle_ttl": "unload timeout",
        "models.overrides": "quantize window",
        "scheduler.": "speed fast slow",
        "scheduler.max_": "parallel concurrent users",
        "memory.": "ram gpu",
        "cache.hot": "ram",
        "cache.cold": "disk ssd storage",
        "cache.remote": "network",
        "kv_cache.": "quantize quantization compress context ram",
        "speculation.": "speed fast slow",
        "adapters.": "fine-tune",
        "sampling.max_tokens": "length output",
        "context.": "window length history",
        "images.": "vision picture photo",
        "responses.": "disk history",
        "logging.": "debug verbose",
        "metrics.": "prometheus grafana",
        "web.": "ui",
        "cluster.": "distributed",
    }
)


@dataclass(frozen=True, slots=True)
class LayerValue:
    """A value of one layer. `is_text`: the text of a flag or variable, not yet parsed."""

    value: object
    origin: str
    is_text: bool


def read_value(dotted: str, entry: LayerValue) -> object:
    """Return the value of a key in one layer. Raises ConfigError for one that is not allowed."""
    field = FIELDS[dotted]
    value = parse_text(str(entry.value), field) if entry.is_text else entry.value
    return convert(dotted, field, value, entry)


def convert(dotted: str, field: Field, value: object, entry: LayerValue) -> object:
    """Convert `value` to the field's type. Raises ConfigError, with `entry` in its message."""
    hint = _hint_of_unit(field, value)
    with suppress(ValueError):
        if not hint:
            return field.convert(value)
    is_secret = dotted in SECRETS or dotted.startswith("auth.")
    got = "" if is_secret else f", not {_shown(entry.value)}"
    where = f" ({entry.origin})" if entry.origin else ""
    raise ConfigError(f"{dotted}: expected {words_of(field)}{got}{where}", hint=hint)


def _hint_of_unit(field: Field, value: object) -> str:
    """Return the sizes that a number without a unit may mean; empty if it needs none."""
    number = types.number_without_unit(value) if field.mark(ByteSize) else None
    if number is None:
        return ""

    def is_allowed(text: str) -> bool:
        with suppress(ValueError):
            field.convert(text)
            return True
        return False

    units = ("MB", "KB") if number >= 1000 else ("GB", "MB", "KB")
    likely = next(filter(is_allowed, (f"{number}{unit}" for unit in units)), "")
    return f"write {' or '.join(filter(is_allowed, (likely, f'{number}B')))}"


def parse_text(text: str, field: Field) -> object:
    """Parse `text` as the field's schema asks; what can't be parsed is left for `convert`."""
    schema = schema_of(field)
    kinds = {one.get("type") for one in schema.get("anyOf", [schema])}
    stripped = text.strip()
    if not kinds - {"object", None}:
        return from_json_or_toml(stripped)
    if kinds == {"array"}:
        return _parse_list(stripped)
    if kinds == {"boolean"}:
        return _BOOLS.get(stripped.lower(), text)
    if kinds <= _NUMBER_TYPES:
        return parse_number(stripped)
    # Of keys that may also be numbers, sizes convert themselves; the others are a template's.
    is_argument = kinds & _NUMBER_TYPES and not field.mark(types.Conversion)
    return _parse_argument(text) if is_argument else text


def _parse_argument(text: str) -> object:
    """Return a template's argument: a number or boolean if it would print the same text; in
    double quotes always a text."""
    stripped = text.strip()
    number = parse_number(stripped)
    if not isinstance(number, str):
        return number if str(number) == stripped else text
    quoted = from_json_or_toml(stripped) if stripped.startswith('"') else None
    if isinstance(quoted, str):
        return quoted
    return _BOOLS[stripped] if stripped in _TRUE_OR_FALSE else text


def _parse_list(text: str) -> object:
    if text.startswith("["):
        return from_json_or_toml(text)
    lines = filter(str.strip, text.split("\n"))
    return [item.strip() for line in lines for item in line.split(",")]


def from_json_or_toml(text: str) -> object:
    """Parse JSON or a TOML value; else return the text."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, RecursionError):
        document = tomllib.loads(f"value = {text}")
        return document["value"] if len(document) == 1 else text
    return text


def value_of(settings: Settings, dotted: str) -> object:
    section, _, key = dotted.partition(".")
    return getattr(getattr(settings, section), key)


def plain(value: object) -> object:
    """Return `value` for JSON: 64.0 as 64, secrets as stars, keys that are not set left out."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        # A template's argument stays as it is: 1.0 and 1 print differently.
        return {k: plain(v) if isinstance(v, Section) else v for k, v in value.items()}
    if isinstance(value, Section):
        keys = {name: plain(item) for name, item in value}
        return {name: item for name, item in keys.items() if item not in (None, {})}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return str(value) if isinstance(value, Path | Secret) else value


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def choices_of(field: Field) -> list[str]:
    """Return the texts among which a key's value is chosen, if they are few."""
    if field.is_table:
        return []
    schema = field.schema()
    nodes = (schema, *schema.get("anyOf", ()), schema.get("items", {}))
    choices = [str(choice) for node in nodes for choice in node.get("enum", ())]
    is_boolean = any(node.get("type") == "boolean" for node in nodes)
    return [*choices, *_TRUE_OR_FALSE] if is_boolean else choices


def words_of(field: Field) -> str:
    """Say which values a key may have."""
    if wording := field.mark(types.Wording):
        return str(wording)
    schema = schema_of(field)
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if field.mark(ByteSize):
        low, high = format_size(schema["minimum"]), format_size(schema["maximum"])
        return f'a size with its unit, like "8MiB", from {low} to {high}'
    words = {"integer": "an integer", "number": "a number", "boolean": "true or false"}
    words |= {"object": 'a table, as {"name": 1}'}
    type_ = "object" if field.is_table else schema.get("type", "")
    return words.get(type_, "a text") + _bounds(schema)


def schema_of(field: Field) -> Mapping[str, Any]:
    """Return a field's JSON schema, without the null of an optional key."""
    schema = field.schema()
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema


def _bounds(schema: Mapping[str, Any]) -> str:
    words = ""
    if "minimum" in schema:
        words = f" from {schema['minimum']} to {schema['maximum']}"
    elif "exclusiveMinimum" in schema:
        words = f" above {schema['exclusiveMinimum']} up to {schema['maximum']}"
    return words + (f" in steps of {schema['multipleOf']}" if "multipleOf" in schema else "")


def is_size(dotted: str) -> bool:
    return dotted in FIELDS and FIELDS[dotted].mark(ByteSize) is not None


def with_unit(dotted: str, value: object) -> str:
    """Write a number as people do: "4 GB", "30 s". Empty for values without a unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if is_size(dotted):
        return re.sub(r"(?<=\d)(?=[A-Z])", " ", format_size(int(value)))
    unit = _UNITS.get(dotted.rpartition("_")[2])
    return f"{plain(value)} {unit}" if unit else ""


def search_words_of(dotted: str) -> str:
    return " ".join(words for start, words in _SEARCH_WORDS.items() if dotted.startswith(start))


def live(dotted: str) -> str:
    """Return how far a change applies at once; empty if it needs a restart."""
    return FIELDS[dotted].mark(Live) or ""
