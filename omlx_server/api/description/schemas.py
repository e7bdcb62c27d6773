"""Make the JSON schemas of many types at once, with shared parts under names of their own."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

Schema = dict[str, Any]

_PREFIX = "#/components/schemas/"
_MODE: JsonSchemaMode = "validation"
_NULL = {"type": "null"}


class _Plain(GenerateJsonSchema):
    """Pydantic's generator without the titles that repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Schemas:
    """The schemas of all `kinds`. `components` holds, by name, those that others refer to."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        unique = list(dict.fromkeys(kinds))
        inputs = [(kind, _MODE, TypeAdapter[Any](kind)) for kind in unique]
        by_mode, common = TypeAdapter.json_schemas(
            inputs, ref_template=f"{_PREFIX}{{model}}", schema_generator=_Plain
        )
        defs: dict[str, Schema] = common.get("$defs", {})
        names = _short_names(defs)
        for kind in unique:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                target = defs[by_mode[kind, _MODE]["$ref"].removeprefix(_PREFIX)]
                _allow_null(target)
        self.components = {names[name]: _walked(defs[name], names) for name in sorted(defs)}
        self._by_kind: dict[Any, Schema] = {k: _walked(by_mode[k, _MODE], names) for k in unique}

    def of(self, kind: Any) -> Schema:
        """Return the schema of one of `kinds`; KeyError for any other type."""
        return self._by_kind[kind]


def _short_names(defs: Mapping[str, Schema]) -> dict[str, str]:
    """Return a short name for each definition: of pydantic's module path only the folder. Raises
    ValueError if two are equal."""
    names = {name: _short_name(name) for name in defs}
    if len(set(names.values())) < len(names):
        raise ValueError(f"two of these have one name: {sorted(names.values())}")
    return names


def _short_name(name: str) -> str:
    *modules, own = name.split("__")
    folder = modules[-2] if len(modules) > 1 else ""
    return re.sub(r"\W", "_", f"{folder.capitalize()}{own}")


def _allow_null(body: Schema) -> None:
    """Let each optional field of a body's schema also be null."""
    fields = body.get("properties", {})
    for name in fields.keys() - set(body.get("required", ())):
        options = fields[name].get("anyOf", [fields[name]])
        if fields[name] and _NULL not in options:
            fields[name] = {"anyOf": [*options, _NULL]}


def _walked(node: Any, names: Mapping[str, str]) -> Any:
    """Return the schema with short names. `oneOf` without a discriminator becomes `anyOf`: only the
    server's code tells its members apart."""
    if isinstance(node, list):
        return [_walked(item, names) for item in node]
    if isinstance(node, str) and node.startswith(_PREFIX):
        return _PREFIX + names[node.removeprefix(_PREFIX)]
    if not isinstance(node, dict):
        return node
    if "oneOf" in node and "discriminator" not in node:
        node = {"anyOf" if key == "oneOf" else key: value for key, value in node.items()}
    return {key: _walked(value, names) for key, value in node.items()}
