"""Sections of the settings and their keys, checked by msgspec, which loads quickly."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import msgspec
from msgspec import structs

from omlx_server.settings.types import AtHome, Conversion, Secret, place

M = TypeVar("M")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the config file. The constructor checks no types; `of` does."""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Raises ValueError for an unknown key or value, ConfigError for values that contradict
        each other."""
        fields = fields_of(cls)
        if unknown := values.keys() - fields.keys():
            raise ValueError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        return cls(**{name: fields[name].taken(value) for name, value in values.items()})

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for name in self.__struct_fields__:
            yield name, getattr(self, name)


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a section. `default` is as documents show it (a path begins with ~), None for a
    table."""

    name: str
    annotation: Any
    default: object = None

    @property
    def is_table(self) -> bool:
        return isinstance(self.annotation, type) and issubclass(self.annotation, Section)

    def mark(self, kind: type[M]) -> M | None:
        marks = getattr(self.annotation, "__metadata__", ())
        return next((mark for mark in marks if isinstance(mark, kind)), None)

    def taken(self, value: object) -> Any:
        """Convert a value to the key's type. Raises ValueError if it is not allowed, ConfigError
        for a contradiction or a missing home directory."""
        if self.is_table:
            return value if isinstance(value, self.annotation) else self._table(value)
        if reads := self.mark(Conversion):
            value = reads.read(value)
        if isinstance(value, Mapping) and (each := _each(self.annotation)):
            value = {k: each.of(v) if isinstance(v, Mapping) else v for k, v in value.items()}
        try:
            return msgspec.convert(value, self.annotation, dec_hook=_made)
        except msgspec.ValidationError:
            # 64.0 is an integer for JSON schema, so for editors.
            if isinstance(value, float) and value.is_integer():
                return msgspec.convert(int(value), self.annotation)
            raise

    def schema(self) -> dict[str, Any]:
        schema = msgspec.json.schema(self.annotation, schema_hook=_schema)
        for node in (schema, *schema.get("anyOf", ())):
            if "enum" in node:  # msgspec sorts them
                node["enum"] = choices = list(_choices(self.annotation))
                node["type"] = "string" if isinstance(choices[0], str) else "integer"
        schema.pop("$defs", None)
        return schema

    def _table(self, value: object) -> Section:
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.name} is a table")
        table: Section = self.annotation.of(value)
        return table


@cache
def fields_of(section: type[Section]) -> Mapping[str, Field]:
    fields = (Field(f.name, f.type, _default(f)) for f in structs.fields(section))
    return MappingProxyType({field.name: field for field in fields})


def _default(field: structs.FieldInfo) -> object:
    factory = field.default_factory
    if isinstance(factory, AtHome):
        return factory.written
    if isinstance(factory, type) and issubclass(factory, Section):
        return None  # making one may need a home directory
    return field.default if factory is msgspec.NODEFAULT else factory()


def _made(kind: type, value: object) -> object:
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and issubclass(kind, Secret):
        return kind(value)
    if isinstance(value, str) and kind is Path:
        return place(value)
    raise ValueError("not of this kind")


def _each(annotation: object) -> type[Section] | None:
    kinds = get_args(next(iter(get_args(annotation)), None))
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, Section)), None)


def _choices(annotation: object) -> tuple[object, ...]:
    args = get_args(annotation)
    return args if get_origin(annotation) is Literal else _choices(args[0])


def _schema(kind: type) -> dict[str, Any]:
    return {"type": "string", "format": "password" if issubclass(kind, Secret) else "path"}
