"""Sections of the settings and their keys. A key has a type, a default, and marks in its annotation
that say how a value is read and described. msgspec checks the types: it loads quickly, which keeps
`status` quick."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import msgspec
from msgspec import structs

from omlx_server.settings.types import AtHome, Reads, Secret, place

M = TypeVar("M")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the config file. `of` checks all values; the constructor checks no types."""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """The section with the keys and values of a table of a config file.

        Raises:
            ValueError: a key is unknown, or its value is not allowed.
            ConfigError: the values contradict each other.
        """
        fields = fields_of(cls)
        if unknown := values.keys() - fields.keys():
            raise ValueError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
        return cls(**{name: fields[name].taken(value) for name, value in values.items()})

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield each key with its value, in the order of declaration."""
        for name in self.__struct_fields__:
            yield name, getattr(self, name)


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a section. `default` is as documents show it: a directory below the home begins
    with ~. For a table it is None."""

    name: str
    annotation: Any
    default: object = None

    @property
    def is_table(self) -> bool:
        return isinstance(self.annotation, type) and issubclass(self.annotation, Section)

    def mark(self, kind: type[M]) -> M | None:
        """The first mark of this type in the key's annotation; None if there is none."""
        marks = getattr(self.annotation, "__metadata__", ())
        return next((mark for mark in marks if isinstance(mark, kind)), None)

    def taken(self, value: object) -> Any:
        """`value` converted to the type of the key.

        Raises:
            ValueError: the key does not allow this value.
            ConfigError: the values of a table contradict each other, or there is no such home
                directory.
        """
        if self.is_table:
            return value if isinstance(value, self.annotation) else self._table(value)
        if reads := self.mark(Reads):
            value = reads.read(value)
        if isinstance(value, Mapping) and (each := _each(self.annotation)):
            value = {k: each.of(v) if isinstance(v, Mapping) else v for k, v in value.items()}
        try:
            return msgspec.convert(value, self.annotation, dec_hook=_made)
        except msgspec.ValidationError:
            # JSON schema calls 64.0 an integer, and editors check by that.
            if isinstance(value, float) and value.is_integer():
                return msgspec.convert(int(value), self.annotation)
            raise

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the values that the key takes. It holds nothing of the marks."""
        schema = msgspec.json.schema(self.annotation, schema_hook=_schema)
        for node in (schema, *schema.get("anyOf", ())):
            if "enum" in node:  # sorted by their letters
                node["enum"] = choices = list(_choices(self.annotation))
                node["type"] = "string" if isinstance(choices[0], str) else "integer"
        schema.pop("$defs", None)
        return schema

    def _table(self, value: object) -> Section:
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.name} is a table")
        made: Section = self.annotation.of(value)
        return made


@cache
def fields_of(section: type[Section]) -> Mapping[str, Field]:
    """The keys of a section by name, in the order of declaration."""
    fields = (Field(f.name, f.type, _default(f)) for f in structs.fields(section))
    return MappingProxyType({field.name: field for field in fields})


def _default(field: structs.FieldInfo) -> object:
    made = field.default_factory
    if isinstance(made, AtHome):
        return made.written
    if isinstance(made, type) and issubclass(made, Section):
        return None  # to make one may take a home
    return field.default if made is msgspec.NODEFAULT else made()


def _made(kind: type, value: object) -> object:
    """Convert `value` to a type that msgspec does not know: Secret, Path."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and issubclass(kind, Secret):
        return kind(value)
    if isinstance(value, str) and kind is Path:
        return place(value)
    raise ValueError("not of this kind")


def _each(annotation: object) -> type[Section] | None:
    """The section that each value is, for a type like Annotated[dict[str, Section], ...]; None for
    any other type."""
    kinds = get_args(next(iter(get_args(annotation)), None))
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, Section)), None)


def _choices(annotation: object) -> tuple[object, ...]:
    """The choices of a Literal in the order of declaration. It may stand in an Annotated, or first
    in a union."""
    args = get_args(annotation)
    return args if get_origin(annotation) is Literal else _choices(args[0])


def _schema(kind: type) -> dict[str, Any]:
    return {"type": "string", "format": "password" if issubclass(kind, Secret) else "path"}
