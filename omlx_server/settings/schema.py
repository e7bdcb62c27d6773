"""The JSON schema of the config file, for editors: made from the model itself."""

from typing import Any

from omlx_server.settings.sections import KEYS, Settings
from omlx_server.settings.types import SIZE_PATTERN
from omlx_server.settings.values import expected, is_size, live

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """As a file may be written: sizes also as texts, and each key with what it takes in words."""
    schema = Settings.model_json_schema()
    for dotted in KEYS:
        section, _, key = dotted.partition(".")
        table = schema["properties"][section]["$ref"].rpartition("/")[2]
        properties = schema["$defs"][table]["properties"]
        properties[key] = _described(properties[key], dotted)
    title = "omlx-server's config file"
    written: dict[str, Any] = _in_javascript(schema)
    return {"$schema": _DIALECT, **written, "title": title}


def _in_javascript(node: Any) -> Any:
    """Patterns of JSON schema have no \\A and no \\z."""
    if isinstance(node, list):
        return [_in_javascript(item) for item in node]
    if not isinstance(node, dict):
        return node
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        node = {**node, "pattern": pattern.replace(r"\A", "^").replace(r"\z", "$")}
    return {key: _in_javascript(value) for key, value in node.items()}


def _described(node: dict[str, Any], dotted: str) -> dict[str, Any]:
    words = {"description": "; ".join([expected(dotted), *filter(None, [live(dotted)])])}
    if not is_size(dotted):
        return {**node, **words}
    kept: dict[str, Any] = {name: node[name] for name in ("title", "default") if name in node}
    bounds = {name: value for name, value in node.items() if name not in kept}
    text = {"type": "string", "pattern": SIZE_PATTERN}
    return {**kept, **words, "anyOf": [bounds, text]}
