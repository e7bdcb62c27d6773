"""Reads values that a model wrote as bare text, by their schema, and numbers calls."""

import ast
import json
import math
import secrets
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.core.crash import Crash, guarded
from omlx_server.text.encoding.searching import without_surrogates
from omlx_server.text.grammar.json_schema.prepare import resolve_pointer
from omlx_server.text.parts import CallStart

_ALPHABET = string.ascii_letters + string.digits
_MAX_DEPTH = 10


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def short_call_id() -> str:
    """Return nine letters and digits, as templates of Mistral's models require."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class Numbering:
    """The next index and id; `count` calls have begun."""

    def __init__(self, make_id: Callable[[], str] = new_call_id) -> None:
        self._make_id = make_id
        self.count = 0

    def start(self, name: str) -> CallStart:
        start = CallStart(self.count, self._make_id(), name)
        self.count += 1
        return start


def to_json(value: Any) -> str:
    """Raises RecursionError for too deep nesting, ValueError for an integer of too many digits."""
    return json.dumps(_as_plain(value), ensure_ascii=False)


def json_object(members: Mapping[str, str]) -> str:
    """Return an object of members whose values are JSON text."""
    return "{" + ", ".join(f"{to_json(key)}: {value}" for key, value in members.items()) + "}"


def _as_plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return without_surrogates(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {without_surrogates(str(key)): _as_plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_as_plain(item) for item in value]
    return without_surrogates(str(value))


_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_JSON_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
    tuple: "array",
    set: "array",
    type(None): "null",
}
Kinds = frozenset[str]
"""The types of JSON that a value may have; none for any type."""


@dataclass(frozen=True, slots=True)
class ParameterSchema:
    """A JSON schema, or what a client sent for one, within the schema `root`."""

    value: Any
    root: Any

    @property
    def kinds(self) -> Kinds:
        return frozenset(_types_of(self.value, self.root, 0))

    def of_member(self, key: str) -> "ParameterSchema":
        """Return the schema of an object's member or, with the key "item", of a list's items."""
        schema = self.value if isinstance(self.value, Mapping) else {}
        if isinstance(reference := schema.get("$ref"), str):
            schema = resolve_pointer(self.root, reference) or {}
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return ParameterSchema(properties[key], self.root)
        return ParameterSchema(schema.get("items") if key == "item" else None, self.root)


def tool_names(tools: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


def parameters_of(tools: Sequence[Mapping[str, Any]], name: str) -> ParameterSchema:
    """Return the schema of a tool's parameters; empty for an unknown tool."""
    named = (tool["function"] for tool in tools if tool["function"]["name"] == name)
    parameters = next((function.get("parameters") for function in named), None)
    return ParameterSchema(parameters, parameters)


def _types_of(schema: Any, root: Any, depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _types_of(resolve_pointer(root, reference), root, depth + 1) if root else set()
    kinds = schema.get("type")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return {kind for kind in kinds if isinstance(kind, str)}
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return {_JSON_TYPES.get(type(value), "") for value in values}
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            types_of_choices = [_types_of(choice, root, depth + 1) for choice in choices]
            # A choice of any type makes the whole one of any type.
            return set().union(*types_of_choices) if all(types_of_choices) else set()
    return set()


def typed_json(text: str, kinds: Kinds) -> str:
    """Return bare text as JSON: of one of the types `kinds`, if any, where it is such; else a
    string."""
    value = parse_literal(text.strip())
    if isinstance(value, float) and "number" not in kinds and value.is_integer():
        value = int(value)
    kind = _JSON_TYPES.get(type(value), "")
    fits = kind in kinds or (kind == "integer" and "number" in kinds) or not kinds
    value_json = guarded(to_json, value) if fits and kind not in ("string", "") else None
    return value_json if isinstance(value_json, str) else to_json(text)


def parse_literal(text: str) -> Any:
    """Return the value of JSON or of a Python literal; a Crash if it is neither."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    value = guarded(json.loads, text)
    return guarded(_parse_python, text) if isinstance(value, Crash) else value


class _Constants(ast.NodeTransformer):
    """Replaces names such as `true` and `None` by their values."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_CONSTANTS[node.id.lower()])


def _parse_python(text: str) -> Any:
    tree = ast.parse(text, mode="eval")
    return ast.literal_eval(_Constants().visit(tree).body)
