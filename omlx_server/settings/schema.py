"""The JSON schema of the config file, for editors: made from the model itself."""

import inspect
from typing import Any

from omlx_server.settings.fields import Section, fields_of
from omlx_server.settings.sections import FIELDS, SECTIONS
from omlx_server.settings.types import SIZE_PATTERN
from omlx_server.settings.values import expected, is_size, live, plain

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TITLE = "omlx-server's config file"


def json_schema() -> dict[str, Any]:
    """As a file may be written: sizes also as texts, and each key with what it takes in words."""
    tables: dict[str, Any] = {}
    for name, section in SECTIONS.items():
        tables[section.__name__] = _table(name, section, tables)
    properties = {
        name: {"$ref": f"#/$defs/{section.__name__}"} for name, section in SECTIONS.items()
    }
    whole = _object(_TITLE, properties) | {"$defs": tables}
    return {"$schema": _DIALECT, **_in_javascript(whole)}


def _table(name: str, section: type[Section], tables: dict[str, Any]) -> dict[str, Any]:
    """That of one section. Tables below its keys are added to `tables`."""
    keys = {}
    for key in fields_of(section):
        node = FIELDS[f"{name}.{key}"].schema()
        tables |= node.pop("$defs", {})
        keys[key] = _described(node, f"{name}.{key}")
    words = {"description": inspect.cleandoc(section.__doc__)} if section.__doc__ else {}
    return words | _object(section.__name__, keys)


def _object(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _in_javascript(node: Any) -> Any:
    """Patterns of JSON schema have no \\A and no \\Z."""
    if isinstance(node, list):
        return [_in_javascript(item) for item in node]
    if not isinstance(node, dict):
        return node
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        node = {**node, "pattern": pattern.replace(r"\A", "^").replace(r"\Z", "$")}
    return {key: _in_javascript(value) for key, value in node.items()}


def _described(node: dict[str, Any], dotted: str) -> dict[str, Any]:
    if is_size(dotted):
        node = {"anyOf": [node, {"type": "string", "pattern": SIZE_PATTERN}]}
    words = "; ".join([expected(dotted), *filter(None, [live(dotted)])])
    return {"description": words, "default": plain(FIELDS[dotted].default), **node}
