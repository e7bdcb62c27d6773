"""Closes the objects of a schema: they may have only the properties that it lists, since a model
invents keys until its tokens are used up.

Objects without a list, or with `additionalProperties`, stay open. Joined schemas are closed as a
whole.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.grammar.json_schema.prepare import resolve_pointer

_MOST_SCHEMAS = 50
_MOST_NAMES = 2_000
_MAX_CHAIN = 10
_UNREAD_KEYS = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties")
_MAX_LOOKS = 200_000
_APPLIED_IN_PLACE = ("allOf", "anyOf", "oneOf", "$ref")
_OBJECT_KEYS = ("properties", "patternProperties", "additionalProperties", "required")
_COUNTED = ("properties", "patternProperties", "required", *_APPLIED_IN_PLACE)
_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMA_LISTS = ("prefixItems", "items")
_SINGLE_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_OPEN_FORM = "omlx-open-"


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


@dataclass(slots=True)
class Listed:
    """The properties that schemas list or require: `names` and `patterns`. `lists`: there is any
    list. `others`: other properties are allowed. `least`: the fewest properties."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    lists: bool = False
    others: bool = False
    least: int = 0

    @property
    def closable(self) -> bool:
        can_reach_least = bool(self.patterns) or len(self.names) >= self.least
        return self.lists and not self.others and can_reach_least


def close_objects(schema: Any, param: str) -> Any:
    """Return a closed copy. Raises BadRequest for too many references."""
    if not isinstance(schema, dict):
        return schema
    closing = _Closing(schema, param)
    result = closing.closed_form(schema)
    forms = dict(closing.open_forms())
    return {**result, "$defs": {**result.get("$defs", {}), **forms}} if forms else result


class _Closing:
    """Closes one schema. What combined schemas refer to gets an open form, under a new name."""

    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._form_names: dict[str, str] = {}  # by the reference
        self._looks = 0  # at schemas and their keys, which take time

    def open_forms(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and schema of each open form; making one may add more."""
        position = 0
        while position < len(self._form_names):
            reference, name = list(self._form_names.items())[position]
            yield name, self._open_form(resolve_pointer(self._root, reference))
            position += 1

    def closed_form(self, schema: Any) -> Any:
        """Return a schema, closed, that no other schema is combined with."""
        if not isinstance(schema, dict):
            return schema
        applied = [key for key in _APPLIED_IN_PLACE if key in schema]
        if applied == ["$ref"] and not any(key in schema for key in _OBJECT_KEYS):
            return self._close_children(schema)
        if not applied:
            return _forbid_others(self._close_children(schema), self._collect_listed([schema]))
        return self._close_combined(schema)

    def _close_combined(self, schema: Mapping[str, Any]) -> Any:
        """Close a schema that applies others in place. Alternatives are closed one by one, each
        with the properties beside it, where that excludes no answer; else all together:

            {"properties": {"a": A}, "anyOf": [{"properties": {"b": B}}, {"properties": {"c": C}}]}
            -> {"anyOf": [{"properties": {"b": B, "a": true}, "additionalProperties": false},
                          {"properties": {"c": C, "a": true}, "additionalProperties": false}], ...}
        """
        combined = self._open_form(schema)
        key = "anyOf" if "anyOf" in schema else "oneOf"
        branches = schema.get(key)
        if isinstance(branches, list) and (key == "anyOf" or are_exclusive(branches, self._root)):
            others = {name: value for name, value in schema.items() if name != key}
            combined.pop(key)
            combined["anyOf"] = [self._close_alternative(branch, others) for branch in branches]
            if not self._collect_listed([others]).lists:
                return combined
        return _forbid_others(combined, self._collect_listed([schema]))

    def _close_alternative(self, branch: Any, around: Mapping[str, Any]) -> Any:
        """Close one alternative to its own properties and those of the schema around it."""
        stands_alone = not any(key in around for key in (*_APPLIED_IN_PLACE, *_OBJECT_KEYS))
        if stands_alone or not isinstance(branch, dict):
            return self.closed_form(branch)
        listed = self._collect_listed([around, branch])
        open_branch = self._open_form(branch)
        if not listed.closable or not self._collect_listed([branch]).lists:
            return open_branch
        if any(key in branch for key in _APPLIED_IN_PLACE):
            return {"allOf": [open_branch, _forbid_others({}, listed)]}
        return _forbid_others(open_branch, listed)

    def _open_form(self, schema: Any) -> Any:
        """Return a schema that others are combined with: open itself, its properties closed."""
        if not isinstance(schema, dict):
            return schema
        copy = self._close_children(schema)
        for key in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                copy[key] = [self._open_form(branch) for branch in schema[key]]
        if "$ref" in schema:
            copy["$ref"] = self._open_reference(schema["$ref"])
        return copy

    def _close_children(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(schema)
        for key in _SCHEMA_MAPS:
            if isinstance(schema.get(key), dict):
                copy[key] = {name: self.closed_form(child) for name, child in schema[key].items()}
        for key in _SINGLE_SCHEMAS:
            if isinstance(schema.get(key), dict):
                copy[key] = self.closed_form(schema[key])
        for key in _SCHEMA_LISTS:
            if isinstance(schema.get(key), list):
                copy[key] = [self.closed_form(child) for child in schema[key]]
        return copy

    def _open_reference(self, reference: str) -> str:
        """Return a reference to the open form of what `reference` names."""
        target_lists = self._collect_listed([{"$ref": reference}]).lists
        if not target_lists or resolve_pointer(self._root, reference) is None:
            return reference
        name = self._form_names.setdefault(reference, f"{_OPEN_FORM}{len(self._form_names)}")
        return f"#/$defs/{name}"

    def _collect_listed(self, schemas: Sequence[Any]) -> Listed:
        """Collect what these schemas, and all that they apply in place, list."""
        listed, pending, seen = Listed(), list(reversed(schemas)), set[str]()
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict):
                continue
            _add_listed(listed, schema)
            self._count_look(schema)
            for key in ("oneOf", "anyOf", "allOf"):
                pending += reversed(schema[key] if isinstance(schema.get(key), list) else [])
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                target = resolve_pointer(self._root, reference)
                listed.others |= target is None
                pending.append(target)
        return listed

    def _count_look(self, schema: Mapping[str, Any]) -> None:
        sizes = [len(schema[key]) for key in _COUNTED if isinstance(schema.get(key), dict | list)]
        self._looks += 1 + sum(sizes)
        if self._looks > _MAX_LOOKS:
            raise BadRequest(f"{self._param} has too many references", param=self._param)


def _add_listed(listed: Listed, schema: Mapping[str, Any]) -> None:
    for key, into in (("properties", listed.names), ("patternProperties", listed.patterns)):
        if isinstance(schema.get(key), dict):
            listed.lists = True
            into.update(dict.fromkeys(schema[key]))
    required = schema.get("required", ())
    listed.names.update({name: None for name in required if isinstance(name, str)})
    others = schema.get("additionalProperties")
    listed.others |= others is True or isinstance(others, dict)
    # A constant object has the properties that it has, listed or not.
    listed.others |= "const" in schema or "enum" in schema
    least = schema.get("minProperties")
    listed.least = max(listed.least, least if isinstance(least, int) else 0)


def _forbid_others(schema: Mapping[str, Any], listed: Listed) -> dict[str, Any]:
    """Return a copy, closed if it can be. A listed property without a schema may be anything."""
    copy = dict(schema)
    if not listed.closable or "additionalProperties" in schema:
        return copy
    for key, names in (("properties", listed.names), ("patternProperties", listed.patterns)):
        value = schema.get(key, {})
        if names or key in schema:
            copy[key] = {**value, **{name: True for name in names if name not in value}}
    return {**copy, "additionalProperties": False}
