"""A client's tools in the plain form that mlx-lm's parsers can read. Pure.

The parsers read the `type` of a parameter to tell the text "12" from the number, and fail on absent
or odd parts. So every tool gets `parameters.properties`, and a property's `type` is one word where
the schema allows just one type besides null.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def plain_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [_plain_tool(tool["function"]) for tool in tools]


def _plain_tool(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    known = _plain_properties(properties) if isinstance(properties, Mapping) else {}
    plain = {"type": "object", "properties": known}
    return {"type": "function", "function": {"name": function["name"], "parameters": plain}}


def _plain_properties(properties: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    return {
        str(name): _plain_schema(schema)
        for name, schema in properties.items()
        if isinstance(schema, Mapping)
    }


def _plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    types = set(_types(schema)) - {"null"}
    kind = types.pop() if len(types) == 1 else None
    return {**schema, "type": kind} if kind is not None else dict(schema)


def _types(schema: Mapping[str, Any]) -> Iterable[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        yield from (part for part in kind if isinstance(part, str))
    elif isinstance(enum := schema.get("enum"), list) and all(isinstance(e, str) for e in enum):
        yield "string"
    for field in ("anyOf", "oneOf"):
        choices = schema.get(field)
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, Mapping):
                # A choice of unknown type keeps the whole from being one of one type.
                yield from list(_types(choice)) or ["any"]
