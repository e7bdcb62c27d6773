"""Reads a value whose members are tags, as MiniMax-M3 writes it:
`<city>Rome</city><days><item>1</item><item>2</item></days>`."""

from omlx_server.text.tool_calls.plain_json import json_object
from omlx_server.text.tool_calls.values import ParameterSchema, typed_json

_MAX_DEPTH = 50


def nested_tags_json(text: str, mark: str, schema: ParameterSchema, depth: int = 0) -> str:
    """Return the JSON text of a value whose tags have `mark` in front; unmatched tags make it a
    string."""
    members = _split_tags(text.strip(), mark) if depth < _MAX_DEPTH else None
    if members is None:
        return typed_json(text, schema.kinds)
    values = [
        nested_tags_json(content, mark, schema.of_member(key), depth + 1)
        for key, content in members
    ]
    if all(key == "item" for key, _ in members):
        return f"[{', '.join(values)}]"
    return json_object(dict(zip([key for key, _ in members], values, strict=True)))


def _split_tags(text: str, mark: str) -> list[tuple[str, str]] | None:
    """Return the tags by name and content; None for a text that is not all tags."""
    members: list[tuple[str, str]] = []
    while text:
        name, tag_end, after = text.removeprefix(f"{mark}<").partition(">")
        if not text.startswith(f"{mark}<") or not tag_end or name.startswith("/"):
            return None
        end = _matching_end(after, f"{mark}<{name}>", f"{mark}</{name}>")
        if end is None:
            return None
        members.append((name, after[:end]))
        text = after[end:].removeprefix(f"{mark}</{name}>").lstrip()
    return members or None


def _matching_end(text: str, start: str, end: str) -> int | None:
    depth, position = 1, 0
    while depth:
        place = text.find(end, position)
        if place < 0:
            return None
        depth += text.count(start, position, place) - 1
        position = place + len(end)
    return position - len(end)
