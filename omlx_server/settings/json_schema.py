"""The JSON schema of the config file, for editors."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

from omlx_server.settings.fields import Field, Section, fields_of
from omlx_server.settings.overrides import OVERRIDES
from omlx_server.settings.sections import SECTIONS
from omlx_server.settings.types import LEAST_WITHOUT_UNIT, SIZE_PATTERN, ByteSize, Live
from omlx_server.settings.values import plain, words_of

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TITLE = "omlx-server's config file"


def json_schema() -> dict[str, Any]:
    properties = {name: {"$ref": f"#/$defs/{kind.__name__}"} for name, kind in SECTIONS.items()}
    tables = {kind.__name__: _table_schema(kind) for kind in (*SECTIONS.values(), *OVERRIDES)}
    text = json.dumps(_object(_TITLE, properties) | {"$defs": tables})
    # Patterns of JSON schema have ^ and $ for Python's \A and \Z.
    return {"$schema": _DIALECT, **json.loads(text.replace(r"\\A", "^").replace(r"\\Z", "$"))}


def _table_schema(section: type[Section]) -> dict[str, Any]:
    keys = {name: _key_schema(field) for name, field in fields_of(section).items()}
    words = {"description": inspect.cleandoc(section.__doc__)} if section.__doc__ else {}
    return words | _object(section.__name__, keys)


def _object(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _key_schema(field: Field) -> dict[str, Any]:
    node = field.schema()
    if field.mark(ByteSize):
        node = {
            "anyOf": [*_without_small_numbers(node), {"type": "string", "pattern": SIZE_PATTERN}]
        }
    takes = "; ".join(filter(None, [words_of(field), field.mark(Live)]))
    words = "\n".join(filter(None, [field.text, takes]))
    default = {} if field.is_table else {"default": plain(field.default)}
    return {"description": words, **default, **node}


def _without_small_numbers(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the choices of a size's schema, in which a number below a megabyte can only be 0."""
    for choice in node.get("anyOf", (node,)):
        if choice.get("type") != "integer":
            yield choice
            continue
        if choice["minimum"] == 0:
            yield {"const": 0}
        yield {**choice, "minimum": LEAST_WITHOUT_UNIT}
