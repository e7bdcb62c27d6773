"""Sections of the settings and their keys, checked by msgspec, which loads quickly."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import msgspec
from msgspec import structs

from omlx_server.settings.types import AtHome, Conversion, Secret, parse_path

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
        return cls(**{name: fields[name].convert(value) for name, value in values.items()})

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
    section: type[Section] | None = None

    @property
    def text(self) -> str:
        """The text that explains the key: it stands below it in the source."""
        return _texts_of(self.section).get(self.name, "") if self.section else ""

    @property
    def is_table(self) -> bool:
        return isinstance(self.annotation, type) and issubclass(self.annotation, Section)

    def mark(self, kind: type[M]) -> M | None:
        """Return the mark of this kind in the annotation, if there is one."""
        marks = getattr(self.annotation, "__metadata__", ())
        return next((mark for mark in marks if isinstance(mark, kind)), None)

    def convert(self, value: object) -> Any:
        """Convert a value to the key's type. Raises ValueError if it is not allowed, ConfigError
        for a contradiction or a missing home directory."""
        if self.is_table:
            if isinstance(value, self.annotation):
                return value
            if not isinstance(value, Mapping):
                raise ValueError(f"{self.name} is a table")
            return self.annotation.of(value)
        if conversion := self.mark(Conversion):
            value = conversion.read(value)
        section = _section_of_values(self.annotation)
        if isinstance(value, Mapping) and section:
            value = {k: section.of(v) if isinstance(v, Mapping) else v for k, v in value.items()}
        try:
            return msgspec.convert(value, self.annotation, dec_hook=_convert_to_own_class)
        except msgspec.ValidationError:
            # 64.0 is an integer for JSON schema, so for editors.
            if isinstance(value, float) and value.is_integer():
                return msgspec.convert(int(value), self.annotation)
            raise

    def schema(self) -> dict[str, Any]:
        """Return the key's JSON schema."""
        schema = msgspec.json.schema(self.annotation, schema_hook=_schema_of_own_class)
        for node in (schema, *schema.get("anyOf", ())):
            if "enum" in node:  # msgspec sorts them
                node["enum"] = choices = list(_choices(self.annotation))
                node["type"] = "string" if isinstance(choices[0], str) else "integer"
        schema.pop("$defs", None)
        return schema


@cache
def fields_of(section: type[Section]) -> Mapping[str, Field]:
    fields = (Field(f.name, f.type, _default(f), section) for f in structs.fields(section))
    return MappingProxyType({field.name: field for field in fields})


@cache
def _texts_of(section: type[Section]) -> Mapping[str, str]:
    texts = {}
    for key, text in pairwise(_classes_in(section.__module__).get(section.__name__, ())):
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
            texts[ast.unparse(key.target)] = inspect.cleandoc(ast.literal_eval(text.value))
    return texts


@cache
def _classes_in(module: str) -> Mapping[str, list[ast.stmt]]:
    nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: node.body for node in nodes if isinstance(node, ast.ClassDef)}


def _default(field: structs.FieldInfo) -> object:
    factory = field.default_factory
    if isinstance(factory, AtHome):
        return factory.written
    if isinstance(factory, type) and issubclass(factory, Section):
        return None  # making one may need a home directory
    return field.default if factory is msgspec.NODEFAULT else factory()


def _convert_to_own_class(kind: type, value: object) -> object:
    """Convert to a class that msgspec does not know: a path or a secret."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and issubclass(kind, Secret):
        return kind(value)
    if isinstance(value, str) and kind is Path:
        return parse_path(value)
    raise ValueError("not of this kind")


def _schema_of_own_class(kind: type) -> dict[str, Any]:
    return {"type": "string", "format": "password" if issubclass(kind, Secret) else "path"}


def _section_of_values(annotation: object) -> type[Section] | None:
    """Return the section in Annotated[dict[str, section], ...]; None for other annotations."""
    dict_args = get_args(next(iter(get_args(annotation)), None))
    sections = (one for one in dict_args if isinstance(one, type) and issubclass(one, Section))
    return next(sections, None)


def _choices(annotation: object) -> tuple[object, ...]:
    """Return the values of a Literal, in their order in the source."""
    args = get_args(annotation)
    return args if get_origin(annotation) is Literal else _choices(args[0])
