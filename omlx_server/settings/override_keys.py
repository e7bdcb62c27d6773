"""One key of what a model has otherwise, as commands name it: models.overrides.NAME.KEY.

KEY is as in the config file, with dots for tables in tables: ttl, sampling.top_p. NAME may have
dots and slashes of its own, and may stand in quotes: models.overrides."org/name".kv_cache.bits.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from omlx_server.errors import ConfigError, OmlxError
from omlx_server.settings.fields import Field, Section, fields_of
from omlx_server.settings.sections import ModelOverrides, Settings
from omlx_server.settings.types import Says, number
from omlx_server.settings.values import BOOLS, Entry, from_json, plain, schema_of, valid

TABLE = "models.overrides"
_ANY = "chat_template_kwargs"
_QUOTED = re.compile(r'"(?P<model>[^"]+)"\.(?P<key>.+)|\'(?P<other>[^\']+)\'\.(?P<its>.+)')
_NUMBERS = {"integer", "number"}
_WORDS = ("true", "false")


_ARGUMENT = Field(
    "argument",
    Annotated[bool | int | float | str, Says("true, false, a number or a text")],
)
"""One that a template is given."""


def _fields(section: type[Section], above: str = "") -> Iterator[tuple[str, Field]]:
    for name, field in fields_of(section).items():
        yield f"{above}{name}", field
        if field.is_table:
            yield from _fields(field.annotation, f"{above}{name}.")


FIELDS: Mapping[str, Field] = MappingProxyType(dict(_fields(ModelOverrides)))
_TABLES = frozenset(name for name, field in FIELDS.items() if field.is_table)


@dataclass(frozen=True, slots=True)
class OverrideKey:
    """`key` is below the table of the model; `field` says what it takes."""

    model: str
    key: str
    field: Field

    @property
    def dotted(self) -> str:
        return f"{TABLE}.{self.model}.{self.key}"

    @property
    def path(self) -> tuple[str, ...]:
        """From the root of the config file."""
        # What a template takes may have a name with dots.
        keys = self.key.split(".", 1)
        return ("models", "overrides", self.model, *keys)

    def checked(self, text: str, origin: str) -> object:
        """What a text means here, as a config file would have it.

        Raises:
            ConfigError: the key does not take it.
        """
        entry = Entry(text, origin, is_text=True)
        value = valid(self.dotted, self.field, _typed(text, self.field), entry)
        return value if self.key.startswith(f"{_ANY}.") else plain(value)

    def value_in(self, settings: Settings) -> object:
        """What is set, as JSON can hold it.

        Raises:
            OmlxError: nothing is.
        """
        overrides = settings.models.overrides
        found = plain(overrides[self.model]) if self.model in overrides else {}
        for name in self.path[3:]:
            found = found.get(name) if isinstance(found, dict) else None
        if found is None or found == {}:
            there = ", ".join(overrides)
            hint = f"there are overrides of {there}" if there else "no model has any overrides"
            raise OmlxError(f"{self.dotted} is not set", hint=hint)
        return found


def check_tables(entry: Entry) -> None:
    """What one layer says of all models, key by key. What is no tables by model is left to the
    field itself.

    Raises:
        ConfigError: a key is unknown, or does not take its value.
    """
    tables = from_json(str(entry.value)) if entry.is_text else entry.value
    for model, table in tables.items() if isinstance(tables, Mapping) else ():
        for key, value in _leaves(table):
            dotted = f"{TABLE}.{model}.{key}"
            field = _field(key)
            if field is None:
                raise ConfigError(f"unknown key {dotted} ({entry.origin})", hint=_hint([("", key)]))
            valid(dotted, field, value, Entry(value, entry.origin, is_text=False))


def _leaves(table: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Keys with dots, and their values; none of what is no table."""
    for key, value in table.items() if isinstance(table, Mapping) else ():
        if f"{above}{key}" in _TABLES and isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def is_override(dotted: str) -> bool:
    return dotted.startswith(f"{TABLE}.")


def find_override(dotted: str) -> OverrideKey:
    """Raises ConfigError with the nearest key where none is meant."""
    rest = dotted.removeprefix(f"{TABLE}.")
    if quoted := _QUOTED.fullmatch(rest):
        splits = [(quoted["model"] or quoted["other"], quoted["key"] or quoted["its"])]
    else:
        dots = [place for place, letter in enumerate(rest) if letter == "."]
        splits = [(rest[:place], rest[place + 1 :]) for place in dots]
    for model, key in splits:
        field = _field(key)
        if model and field is not None:
            return OverrideKey(model, key, field)
    raise ConfigError(f"unknown key {dotted}", hint=_hint(splits))


def _field(key: str) -> Field | None:
    if key.startswith(f"{_ANY}.") and key != f"{_ANY}.":
        return _ARGUMENT
    return FIELDS.get(key)


def _hint(splits: list[tuple[str, str]]) -> str:
    """The last two parts may be the key as well as the last one."""
    by_last = {name.rpartition(".")[2]: name for name in FIELDS}
    for _, key in splits[-2:]:
        known = (*FIELDS, *by_last)
        if near := difflib.get_close_matches(key, known, n=1):
            return f"did you mean {TABLE}.NAME.{by_last.get(near[0], near[0])}?"
    return f"as {TABLE}.NAME.KEY; a KEY is one of {', '.join(FIELDS)}"


def _typed(text: str, field: Field) -> object:
    """A text as a flag would give it, as one of the types that the field takes."""
    schema: Mapping[str, Any] = schema_of(field)
    kinds = {one.get("type") for one in schema.get("anyOf", [schema])}
    stripped = text.strip()
    if not kinds - {"object", None}:
        return from_json(stripped)
    if "string" in kinds and kinds & _NUMBERS:
        return _argument(text)
    if kinds & _NUMBERS:
        return number(stripped)
    return BOOLS.get(stripped.lower(), text) if kinds == {"boolean"} else text


def _argument(text: str) -> object:
    """A number only if a template would print it so; a text in quotes is one, whatever it says."""
    stripped = text.strip()
    found = number(stripped)
    if not isinstance(found, str):
        return found if str(found) == stripped else text
    quoted = from_json(stripped) if stripped.startswith('"') else None
    return quoted if isinstance(quoted, str) else BOOLS[stripped] if stripped in _WORDS else text
