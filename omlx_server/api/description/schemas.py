"""JSON schemas of many types at once: what they share stands once, under names that tell them
apart. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

Schema = dict[str, Any]

_PREFIX = "#/components/schemas/"
_MODE: JsonSchemaMode = "validation"
_NULL = {"type": "null"}


class _Plain(GenerateJsonSchema):
    """Without titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Schemas:
    """`components`: the schemas that others refer to, by name."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        unique = list(dict.fromkeys(kinds))
        inputs = [(kind, _MODE, TypeAdapter[Any](kind)) for kind in unique]
        made, rest = TypeAdapter.json_schemas(
            inputs, ref_template=f"{_PREFIX}{{model}}", schema_generator=_Plain
        )
        defs: dict[str, Schema] = rest.get("$defs", {})
        names = _short_names(defs)
        for kind in unique:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                target = defs[made[kind, _MODE]["$ref"].removeprefix(_PREFIX)]
                _allow_null(target)
        self.components = {names[name]: _walked(defs[name], names) for name in sorted(defs)}
        self._by_kind = {kind: _walked(made[kind, _MODE], names) for kind in unique}

    def of(self, kind: Any) -> Schema:
        """One that was given at the start."""
        return self._by_kind[kind]


def _short_names(defs: Mapping[str, Schema]) -> dict[str, str]:
    """pydantic puts the module before names that are there twice; its folder is enough."""
    names = {name: _short_name(name) for name in defs}
    if len(set(names.values())) < len(names):
        raise ValueError(f"two of these have one name: {sorted(names.values())}")
    return names


def _short_name(name: str) -> str:
    *modules, own = name.split("__")
    folder = modules[-2] if len(modules) > 1 else ""
    return re.sub(r"\W", "_", f"{folder.capitalize()}{own}")


def _allow_null(body: Schema) -> None:
    """A field of a body that may be left out may be null as well."""
    fields = body.get("properties", {})
    for name in fields.keys() - set(body.get("required", ())):
        options = fields[name].get("anyOf", [fields[name]])
        if fields[name] and _NULL not in options:
            fields[name] = {"anyOf": [*options, _NULL]}


def _walked(schema: Schema, names: Mapping[str, str]) -> Schema:
    """With the short names. What only code can tell apart fits any of several."""

    def change(node: Schema) -> Schema:
        if "oneOf" in node and "discriminator" not in node:
            node = {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}
        return {key: _renamed(value, names) for key, value in node.items()}

    result: Schema = _each_object(schema, change)
    return result


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str) and value.startswith(_PREFIX):
        return _PREFIX + names[value.removeprefix(_PREFIX)]
    return value


def _each_object(node: Any, change: Callable[[Schema], Schema]) -> Any:
    if isinstance(node, dict):
        return {key: _each_object(value, change) for key, value in change(node).items()}
    return [_each_object(item, change) for item in node] if isinstance(node, list) else node
