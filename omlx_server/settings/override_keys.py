"""Dotted keys of single models' settings: models.overrides.NAME.KEY. NAME may have dots and
slashes, and stand in quotes; KEY has dots for tables (presets.coder.temperature)."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from omlx_server.errors import ConfigError, OmlxError
from omlx_server.settings.fields import Field, Section, fields_of
from omlx_server.settings.overrides import ModelOverrides, PresetOverride
from omlx_server.settings.sections import Settings
from omlx_server.settings.types import Wording
from omlx_server.settings.values import LayerValue, convert, from_json_or_toml, parse_text, plain

TABLE = "models.overrides"
_TEMPLATE_KWARGS = "chat_template_kwargs"
_PRESETS = "presets"
_PRESET_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_QUOTED = re.compile(r'"(?P<model>[^"]+)"\.(?P<key>.+)|\'(?P<other>[^\']+)\'\.(?P<its>.+)')

_TEMPLATE_VALUE = Field(
    "argument",
    Annotated[bool | int | float | str, Wording("true, false, a number or a text")],
)
"""The type of one value in chat_template_kwargs."""


def _nested_fields(section: type[Section], above: str = "") -> Iterator[tuple[str, Field]]:
    for name, field in fields_of(section).items():
        yield f"{above}{name}", field
        if field.is_table:
            yield from _nested_fields(field.annotation, f"{above}{name}.")


FIELDS: Mapping[str, Field] = MappingProxyType(dict(_nested_fields(ModelOverrides)))
_TABLES = frozenset(name for name, field in FIELDS.items() if field.is_table) | {_PRESETS}
_PRESET_FIELDS = fields_of(PresetOverride)


@dataclass(frozen=True, slots=True)
class OverrideKey:
    """A key of the overrides of `model`; an empty `key` is all of them."""

    model: str
    key: str
    field: Field

    @property
    def dotted(self) -> str:
        return f"{TABLE}.{self.model}.{self.key}".removesuffix(".")

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the tables and of the key in the config file."""
        # Names of a template's arguments may have dots; those of presets have none.
        keys = self.key.split(".", 2 if self.key.startswith(f"{_PRESETS}.") else 1)
        return ("models", "overrides", self.model, *filter(None, keys))

    def read(self, text: str, origin: str) -> object:
        """Convert a flag's text to the value of a config file. Raises ConfigError."""
        entry = LayerValue(text, origin, is_text=True)
        value = convert(self.dotted, self.field, parse_text(text, self.field), entry)
        return value if self.key.startswith(f"{_TEMPLATE_KWARGS}.") else plain(value)

    def value_in(self, settings: Settings) -> object:
        """Return the key's value. Raises OmlxError if it is not set."""
        overrides = settings.models.overrides
        value = plain(overrides[self.model]) if self.model in overrides else {}
        for name in self.path[3:]:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None or value == {}:
            raise OmlxError(f"{self.dotted} is not set", hint=_models_with_overrides(overrides))
        return value


def table_problems(entry: LayerValue) -> Iterator[ConfigError]:
    """Check one layer's overrides key by key, so that messages name the key."""
    tables = from_json_or_toml(str(entry.value)) if entry.is_text else entry.value
    for model, table in _items(tables):
        for name, _ in _items(dict(_items(table)).get(_PRESETS)):
            if not _PRESET_NAME.fullmatch(name):
                yield ConfigError(
                    f"{TABLE}.{model}.{_PRESETS}: {name!r:.80} can't be the name of a preset "
                    f"({entry.origin})",
                    hint="a name has letters, digits, - and _, at most 64 of them",
                )
        for key, value in _leaves(table):
            dotted = f"{TABLE}.{model}.{key}"
            field = _field_of(key)
            if field is None:
                yield ConfigError(f"unknown key {dotted} ({entry.origin})", hint=_hint([("", key)]))
                continue
            try:
                convert(dotted, field, value, LayerValue(value, entry.origin, is_text=False))
            except ConfigError as error:
                yield error


def keys_in(tables: object) -> Iterator[str]:
    """Yield the dotted names of all models and keys in `tables`."""
    for model, table in _items(tables):
        yield f"{TABLE}.{model}"
        yield from (f"{TABLE}.{model}.{key}" for key, _ in _leaves(table))


def _leaves(table: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Yield the dotted keys of a model's table, which lie in its tables too, and their values."""
    for key, value in _items(table):
        is_table = f"{above}{key}" in _TABLES or above == f"{_PRESETS}."
        if is_table and isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _items(table: object) -> Collection[tuple[str, object]]:
    """Return the items of a table of a config file; none of another value."""
    return table.items() if isinstance(table, Mapping) else ()


def is_override(dotted: str) -> bool:
    return dotted.startswith(f"{TABLE}.")


def find_override(dotted: str, models: Collection[str] | None = None) -> OverrideKey:
    """Return the key that `dotted` names, or one of `models` as a whole. Raises ConfigError."""
    path = dotted.removeprefix(f"{TABLE}.")
    if quoted := _QUOTED.fullmatch(path):
        splits = [(quoted["model"] or quoted["other"], quoted["key"] or quoted["its"])]
    else:
        dots = [place for place, letter in enumerate(path) if letter == "."]
        splits = [(path[:place], path[place + 1 :]) for place in dots]
    for model, key in splits:
        field = _field_of(key)
        if model and field is not None:
            return OverrideKey(model, key, field)
        if key.startswith(f"{_PRESETS}."):  # the rest is no part of a model's name
            break
    is_quoted = path[:1] in ("'", '"') and path[-1] == path[0]
    whole_model = path[1:-1] if is_quoted else path
    if whole_model in (models or ()):
        return OverrideKey(whole_model, "", Field(whole_model, ModelOverrides))
    raise ConfigError(f"unknown key {dotted}", hint=_hint(splits, models))


def _field_of(key: str) -> Field | None:
    if key.startswith(f"{_TEMPLATE_KWARGS}.") and key != f"{_TEMPLATE_KWARGS}.":
        return _TEMPLATE_VALUE
    table, _, inner_key = key.partition(".")
    preset, dot, preset_key = inner_key.partition(".")
    if table == _PRESETS and _PRESET_NAME.fullmatch(preset):
        return _PRESET_FIELDS.get(preset_key) if dot else Field(preset, PresetOverride)
    return FIELDS.get(key)


def _models_with_overrides(models: Collection[str]) -> str:
    return f"there are overrides of {', '.join(models)}" if models else "no model has any overrides"


def _hint(splits: list[tuple[str, str]], models: Collection[str] | None = None) -> str:
    """Return a hint for an unknown key, which can be split so into a model and its key."""
    by_last = {name.rpartition(".")[2]: name for name in FIELDS}
    for _, key in splits:
        if key.startswith(f"{_PRESETS}."):
            return _hint_for_preset(key.rpartition(".")[2])
    for _, key in splits[-2:]:
        if near := difflib.get_close_matches(key, (*FIELDS, *by_last), n=1):
            return f"did you mean {TABLE}.NAME.{by_last.get(near[0], near[0])}?"
    if models is not None and not any(model in models for model, _ in splits):
        return _models_with_overrides(models)
    if not splits:
        return f"as {TABLE}.NAME.KEY, such as {TABLE}.NAME.ttl"
    return f"as {TABLE}.NAME.KEY; a KEY is one of {', '.join(FIELDS)}"


def _hint_for_preset(key: str) -> str:
    near = difflib.get_close_matches(key, _PRESET_FIELDS, n=1)
    if near:
        return f"did you mean {TABLE}.NAME.{_PRESETS}.PRESET.{near[0]}?"
    return f"a preset can have {', '.join(_PRESET_FIELDS)}"
