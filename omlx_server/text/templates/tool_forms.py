"""Completes what clients leave out of a tool and some chat templates read."""

from collections.abc import Mapping, Sequence
from typing import Any


def complete_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools with a description, parameters and properties, and one word for the type
    of each property."""
    return [_complete_tool(tool) for tool in tools]


def _complete_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        properties = {}
    completed = {name: _complete_property(schema) for name, schema in properties.items()}
    parameters = {"type": "object", **parameters, "properties": completed}
    described = {"description": function.get("description") or "", "parameters": parameters}
    return {**tool, "function": {**function, **described}}


def _complete_property(schema: Any) -> dict[str, Any]:
    fields = dict(schema) if isinstance(schema, Mapping) else {}
    kinds = fields.get("type")
    if isinstance(kinds, list):
        types = [kind for kind in kinds if kind != "null"]
        fields["type"] = types[0] if types else "null"
    return {"description": "", **fields}
