"""A client's tools in the plain form that mlx-lm's parsers can read. Pure.

They read `type` of a parameter to tell the text 12 from the number, and stumble over absent or odd
parts. So every tool gets `parameters.properties`, and a property's `type` is one word where the
schema allows but one besides null.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def plain_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [tool for tool in map(_plain_tool, tools) if tool is not None]


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in plain_tools(tools))


def _plain_tool(tool: Any) -> dict[str, Any] | None:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        return None
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    plain = _plain_properties(properties) if isinstance(properties, Mapping) else {}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": plain}},
    }


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
