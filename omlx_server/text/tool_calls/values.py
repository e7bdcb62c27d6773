"""Reads the value of a parameter that a model wrote as bare text, by its schema."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx_server.core.crash import Crash, guarded
from omlx_server.text.grammar.json_schema.pointers import resolved
from omlx_server.text.tool_calls.plain_json import dumped

_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}
_KINDS: Mapping[type, str] = {
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
        return frozenset(_kinds(self.value, self.root, 0))

    def of_member(self, key: str) -> "ParameterSchema":
        """Return the schema of an object's member or, with the key "item", of a list's items."""
        schema = self.value if isinstance(self.value, Mapping) else {}
        if isinstance(reference := schema.get("$ref"), str):
            schema = resolved(self.root, reference) or {}
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return ParameterSchema(properties[key], self.root)
        return ParameterSchema(schema.get("items") if key == "item" else None, self.root)


def tool_names(tools: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


def schema_of(tools: Sequence[Mapping[str, Any]], name: str) -> ParameterSchema:
    """Return the schema of a tool's parameters; empty for an unknown tool."""
    named = (tool["function"] for tool in tools if tool["function"]["name"] == name)
    parameters = next((function.get("parameters") for function in named), None)
    return ParameterSchema(parameters, parameters)


def _kinds(schema: Any, root: Any, depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _kinds(resolved(root, reference), root, depth + 1) if root else set()
    kinds_of_schema = schema.get("type")
    if kinds_of_schema is not None:
        return {kind for kind in _listed(kinds_of_schema) if isinstance(kind, str)}
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return {_KINDS.get(type(value), "") for value in values}
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list):
            kinds_of_choices = [_kinds(choice, root, depth + 1) for choice in choices]
            return set().union(*kinds_of_choices) if all(kinds_of_choices) else set()
    return set()


_MAX_DEPTH = 10


def _listed(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, list) else [value]


def typed(text: str, kinds: Kinds) -> str:
    """Return a value as JSON text of one of the types `kinds`, if any; else it is a string."""
    value = literal(text.strip())
    if isinstance(value, float) and "number" not in kinds and value.is_integer():
        value = int(value)
    kind = _KINDS.get(type(value), "")
    fits = kind in kinds or (kind == "integer" and "number" in kinds) or not kinds
    written = guarded(dumped, value) if fits and kind not in ("string", "") else None
    return written if isinstance(written, str) else dumped(text)


def literal(text: str) -> Any:
    """Return the value of JSON or of a Python literal; a Crash if it is neither."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    value = guarded(json.loads, text)
    return guarded(_python, text) if isinstance(value, Crash) else value


class _Constants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_CONSTANTS[node.id.lower()])


def _python(text: str) -> Any:
    tree = ast.parse(text, mode="eval")
    return ast.literal_eval(_Constants().visit(tree).body)
