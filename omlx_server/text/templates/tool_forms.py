"""Completes what clients leave out of a tool and some chat templates read."""

from collections.abc import Mapping, Sequence
from typing import Any


def completed(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools with a description, parameters and properties, and one word for the type
    of each property."""
    return [_completed_tool(tool) for tool in tools]


def _completed_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    given = function.get("parameters") or {}
    properties = {
        name: _completed_property(schema) for name, schema in _known(given, "properties").items()
    }
    parameters = {"type": "object", **given, "properties": properties}
    described = {"description": function.get("description") or "", "parameters": parameters}
    return {**tool, "function": {**function, **described}}


def _completed_property(schema: Any) -> dict[str, Any]:
    fields = dict(schema) if isinstance(schema, Mapping) else {}
    kinds = fields.get("type")
    if isinstance(kinds, list):
        types = [kind for kind in kinds if kind != "null"]
        fields["type"] = types[0] if types else "null"
    return {"description": "", **fields}


def _known(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, Mapping) else {}
