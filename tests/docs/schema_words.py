"""What the fields of a request take, in the words of docs/chat-completions.md."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

_MUCH = 1 << 31
"""A bound of so much is none to people."""
_PLURALS = {"string": "texts", "integer": "integers", "object": "objects"}


def fields_of(model: type[BaseModel]) -> dict[str, str]:
    """What each field takes, by its name."""
    schema = model.model_json_schema()
    return {name: words(field) for name, field in schema["properties"].items()}


def words(field: dict[str, Any]) -> str:
    """`null`, which every field takes, is left out."""
    kinds = field.get("anyOf", [field])
    said = [word for kind in kinds if kind.get("type") != "null" for word in _kind(kind)]
    return ", ".join(dict.fromkeys(said)) or "nothing"


def _kind(kind: dict[str, Any]) -> Iterator[str]:
    if "enum" in kind or "const" in kind:
        yield from (f"`{value}`" for value in kind.get("enum", [kind.get("const")]))
    elif "$ref" in kind or "oneOf" in kind:
        yield "object"
    elif kind.get("type") == "boolean":
        yield from ("`true`", "`false`")
    elif kind.get("type") in ("integer", "number"):
        yield from (kind["type"], *_bounds(kind))
    elif kind.get("type") == "string":
        yield "text"
    elif kind.get("type") == "array":
        yield f"list of {_PLURALS[kind['items'].get('type', 'object')]}"
        yield from _most(kind, "maxItems")
    elif kind.get("type") == "object":
        yield "object"
        yield from _most(kind, "maxProperties")


def _bounds(kind: dict[str, Any]) -> Iterator[str]:
    low, high = kind.get("minimum"), kind.get("maximum", kind.get("exclusiveMaximum"))
    if high is not None and high > _MUCH:
        return
    if "exclusiveMinimum" in kind:
        yield f"above {kind['exclusiveMinimum']:g}"
        yield f"{high:g} at most"
    elif high == _MUCH:
        yield f"{low:g} or more"
    elif low is not None and high is not None:
        yield f"{low:g} to {high:g}"


def _most(kind: dict[str, Any], key: str) -> Iterator[str]:
    if key in kind:
        yield f"{kind[key]} at most"
