"""Tells whether an answer to one schema of a `oneOf` can satisfy another one. Only listed
properties count."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from omlx_server.text.grammar.json_schema.pointers import resolved

_MOST = 50
_MOST_NAMES = 2_000
_MAX_CHAIN = 10
_UNCLEAR = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A type, and of an object its properties and the required ones."""

    type: str
    properties: Mapping[str, Any]
    required: frozenset[str]
    open: bool


def exclusive(schemas: Sequence[Any], root: Mapping[str, Any]) -> bool:
    """Return whether no answer to one of `schemas` satisfies another; False where unknown."""
    shapes = [_shape(schema, root) for schema in schemas[: _MOST + 1]]
    objects = [shape for shape in shapes if shape is not None]
    names = sum(len(shape.properties) + len(shape.required) for shape in objects)
    if len(objects) < len(shapes) or len(shapes) > _MOST or names > _MOST_NAMES:
        return False
    return all(_fails(one, other) for one, other in permutations(objects, 2))


def _shape(schema: Any, root: Mapping[str, Any]) -> _Shape | None:
    for _ in range(_MAX_CHAIN):
        if not isinstance(schema, dict) or schema.keys() & {"const", "enum"}:
            return None
        if not isinstance(schema.get("$ref"), str):
            break
        schema = resolved(root, schema["$ref"])
    if not isinstance(schema, dict) or any(key in schema for key in _UNCLEAR):
        return None
    properties, kind = schema.get("properties", {}), schema.get("type")
    kind = "object" if kind is None and "properties" in schema else kind
    if not isinstance(kind, str) or not isinstance(properties, dict):
        return None
    required = frozenset(name for name in schema.get("required", ()) if isinstance(name, str))
    is_open = "properties" not in schema or schema.get("additionalProperties", False) is not False
    return _Shape(kind, properties, required, is_open)


def _fails(one: _Shape, other: _Shape) -> bool:
    if one.type != other.type:
        return {one.type, other.type} != {"integer", "number"}
    if one.type != "object":
        return False
    lacks = not one.open and not other.required <= (one.properties.keys() | one.required)
    differs = any(
        _differ(one.properties.get(name), other.properties.get(name)) for name in one.required
    )
    return lacks or differs


def _differ(one: Any, other: Any) -> bool:
    values, others = _literals(one), _literals(other)
    return bool(values) and bool(others) and not values & others


def _literals(schema: Any) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return frozenset(map(_told, values)) if isinstance(values, list) else frozenset()


def _told(value: Any) -> str:
    """Return a value for comparing: to JSON Schema 1 and 1.0 are one."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value)
