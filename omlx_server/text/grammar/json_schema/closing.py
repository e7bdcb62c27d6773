"""Closes the objects of a schema: they may have only the properties that it lists, since a model
invents keys until its tokens are used up.

Objects without a list, or with `additionalProperties`, stay open. Joined schemas are closed as a
whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.grammar.json_schema.exclusion import exclusive
from omlx_server.text.grammar.json_schema.pointers import resolved

_MAX_LOOKS = 200_000
_IN_PLACE = ("allOf", "anyOf", "oneOf", "$ref")
_OF_OBJECTS = ("properties", "patternProperties", "additionalProperties", "required")
_COUNTED = ("properties", "patternProperties", "required", *_IN_PLACE)
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("prefixItems", "items")
_SINGLE = ("items", "additionalItems", "additionalProperties")
_OPEN_FORM = "omlx-open-"


@dataclass(slots=True)
class Listed:
    """`names` and `patterns` of listed or required properties. `lists`: whether there is any
    list. `others`: whether other properties are allowed. `least`: the fewest properties."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    lists: bool = False
    others: bool = False
    least: int = 0

    @property
    def closable(self) -> bool:
        enough = bool(self.patterns) or len(self.names) >= self.least
        return self.lists and not self.others and enough


def closed(schema: Any, param: str) -> Any:
    """Return a closed copy. Raises BadRequest for too many references."""
    if not isinstance(schema, dict):
        return schema
    work = _Closing(schema, param)
    result = work.closed_form(schema)
    forms = dict(work.open_forms())
    return {**result, "$defs": {**result.get("$defs", {}), **forms}} if forms else result


class _Closing:
    def __init__(self, root: Mapping[str, Any], param: str) -> None:
        self._root = root
        self._param = param
        self._forms: dict[str, str] = {}  # the open form of each reference
        self._looks = 0

    def open_forms(self) -> Iterator[tuple[str, Any]]:
        count = 0
        while count < len(self._forms):
            reference, name = list(self._forms.items())[count]
            yield name, self._open(resolved(self._root, reference))
            count += 1

    def closed_form(self, schema: Any) -> Any:
        """Return a schema, closed, that no other schema is combined with."""
        if not isinstance(schema, dict):
            return schema
        applied = [key for key in _IN_PLACE if key in schema]
        if applied == ["$ref"] and not any(key in schema for key in _OF_OBJECTS):
            return self._with_closed_children(schema)
        if not applied:
            return _shut(self._with_closed_children(schema), self._listed([schema]))
        return self._close_combined(schema)

    def _close_combined(self, schema: Mapping[str, Any]) -> Any:
        """Close a schema that applies others in place. Alternatives are closed one by one, each
        with the properties beside it, where that excludes no answer; else all together:

            {"properties": {"a": A}, "anyOf": [{"properties": {"b": B}}, {"properties": {"c": C}}]}
            -> {"anyOf": [{"properties": {"b": B, "a": true}, "additionalProperties": false},
                          {"properties": {"c": C, "a": true}, "additionalProperties": false}], ...}
        """
        part = self._open(schema)
        key = "anyOf" if "anyOf" in schema else "oneOf"
        branches = schema.get(key)
        splits = isinstance(branches, list) and (key == "anyOf" or exclusive(branches, self._root))
        if isinstance(branches, list) and splits:
            others = {name: value for name, value in schema.items() if name != key}
            part.pop(key)
            part["anyOf"] = [self._close_alternative(branch, others) for branch in branches]
            if not self._listed([others]).lists:
                return part
        return _shut(part, self._listed([schema]))

    def _close_alternative(self, branch: Any, rest: Mapping[str, Any]) -> Any:
        """Close one alternative to its own properties and those of `rest`, the schema around it."""
        bare = not any(key in rest for key in (*_IN_PLACE, *_OF_OBJECTS))
        if bare or not isinstance(branch, dict):
            return self.closed_form(branch)
        listed = self._listed([rest, branch])
        part = self._open(branch)
        if not listed.closable or not self._listed([branch]).lists:
            return part
        if any(key in branch for key in _IN_PLACE):
            return {"allOf": [part, _shut({}, listed)]}
        return _shut(part, listed)

    def _open(self, schema: Any) -> Any:
        """Return a schema that others are combined with: open itself, its properties closed."""
        if not isinstance(schema, dict):
            return schema
        copy = self._with_closed_children(schema)
        for key in ("allOf", "anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                copy[key] = [self._open(branch) for branch in schema[key]]
        if "$ref" in schema:
            copy["$ref"] = self._open_reference(schema["$ref"])
        return copy

    def _with_closed_children(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(schema)
        for key in _MAPS:
            if isinstance(schema.get(key), dict):
                copy[key] = {name: self.closed_form(inner) for name, inner in schema[key].items()}
        for key in _SINGLE:
            if isinstance(schema.get(key), dict):
                copy[key] = self.closed_form(schema[key])
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                copy[key] = [self.closed_form(inner) for inner in schema[key]]
        return copy

    def _open_reference(self, reference: str) -> str:
        """Return a reference to the open form of what `reference` names."""
        if not self._listed([{"$ref": reference}]).lists or resolved(self._root, reference) is None:
            return reference
        name = self._forms.setdefault(reference, f"{_OPEN_FORM}{len(self._forms)}")
        return f"#/$defs/{name}"

    def _listed(self, schemas: Sequence[Any]) -> Listed:
        """Collect what these schemas, and all that they apply in place, list."""
        listed, pending, seen = Listed(), list(reversed(schemas)), set[str]()
        while pending:
            schema = pending.pop()
            if not isinstance(schema, dict):
                continue
            _note(listed, schema)
            self._look(schema)
            for key in ("oneOf", "anyOf", "allOf"):
                pending += reversed(schema[key] if isinstance(schema.get(key), list) else [])
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                target = resolved(self._root, reference)
                listed.others |= target is None
                pending.append(target)
        return listed

    def _look(self, schema: Mapping[str, Any]) -> None:
        sizes = [len(schema[key]) for key in _COUNTED if isinstance(schema.get(key), dict | list)]
        self._looks += 1 + sum(sizes)
        if self._looks > _MAX_LOOKS:
            raise BadRequest(f"{self._param} has too many references", param=self._param)


def _note(listed: Listed, schema: Mapping[str, Any]) -> None:
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


def _shut(schema: Mapping[str, Any], listed: Listed) -> dict[str, Any]:
    """A listed property without a schema may be anything."""
    copy = dict(schema)
    if not listed.closable or "additionalProperties" in schema:
        return copy
    for key, names in (("properties", listed.names), ("patternProperties", listed.patterns)):
        value = schema.get(key, {})
        if names or key in schema:
            copy[key] = {**value, **{name: True for name in names if name not in value}}
    return {**copy, "additionalProperties": False}
