"""Tells whether an answer to one schema of a `oneOf` can satisfy another one. Only listed
properties count."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from omlx_server.text.grammar.json_schema.pointers import resolve_pointer

_MOST_SCHEMAS = 50
_MOST_NAMES = 2_000
_MAX_CHAIN = 10
_UNREAD_KEYS = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A type, and of an object its properties. `open`: it may have others, too."""

    type: str
    properties: Mapping[str, Any]
    required: frozenset[str]
    open: bool


def are_exclusive(schemas: Sequence[Any], root: Mapping[str, Any]) -> bool:
    """Return whether no answer to one of `schemas` satisfies another; False where unknown."""
    shapes = [_shape_of(schema, root) for schema in schemas[: _MOST_SCHEMAS + 1]]
    known = [shape for shape in shapes if shape is not None]
    names = sum(len(shape.properties) + len(shape.required) for shape in known)
    if len(known) < len(shapes) or len(shapes) > _MOST_SCHEMAS or names > _MOST_NAMES:
        return False
    return all(_never_fits(one, other) for one, other in permutations(known, 2))


def _shape_of(schema: Any, root: Mapping[str, Any]) -> _Shape | None:
    """Return None for a schema of keys that are not read here."""
    for _ in range(_MAX_CHAIN):
        if not isinstance(schema, dict) or schema.keys() & {"const", "enum"}:
            return None
        if not isinstance(schema.get("$ref"), str):
            break
        schema = resolve_pointer(root, schema["$ref"])
    if not isinstance(schema, dict) or any(key in schema for key in _UNREAD_KEYS):
        return None
    properties, kind = schema.get("properties", {}), schema.get("type")
    kind = "object" if kind is None and "properties" in schema else kind
    if not isinstance(kind, str) or not isinstance(properties, dict):
        return None
    required = frozenset(name for name in schema.get("required", ()) if isinstance(name, str))
    is_open = "properties" not in schema or schema.get("additionalProperties", False) is not False
    return _Shape(kind, properties, required, is_open)


def _never_fits(one: _Shape, other: _Shape) -> bool:
    """Return whether no answer to `one` satisfies `other`."""
    if one.type != other.type:
        return {one.type, other.type} != {"integer", "number"}
    if one.type != "object":
        return False
    lacks_required = not one.open and not other.required <= (one.properties.keys() | one.required)
    differs = any(
        _have_different_literals(one.properties.get(name), other.properties.get(name))
        for name in one.required
    )
    return lacks_required or differs


def _have_different_literals(one: Any, other: Any) -> bool:
    ones, others = _literals(one), _literals(other)
    return bool(ones) and bool(others) and not ones & others


def _literals(schema: Any) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return frozenset(map(_comparable, values)) if isinstance(values, list) else frozenset()


def _comparable(value: Any) -> str:
    """Return a value for comparing: to JSON Schema 1 and 1.0 are one."""
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value)
