"""A client's JSON schema made ready for the engine. Pure; any thread.

The engine refuses keywords that it can't enforce, but does not say where they stand: this does.
Keywords that forbid nothing, such as `uniqueItems: false` or OpenAPI's formats, are dropped. Those
that JSON Schema does not know stay: by its own rule they only annotate.
"""

from collections.abc import Mapping
from typing import Any

from omlx_server.errors import BadRequest

MAX_DEPTH = 100

_UNSUPPORTED = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "$recursiveAnchor",
        "$vocabulary",
    ]
)
# With these values a keyword forbids nothing.
_IDLE: Mapping[str, bool] = {
    "uniqueItems": False,
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
}
# OpenAPI's formats, which say how a program should keep the value, not how it is written.
_OPENAPI_FORMATS = frozenset(["int32", "int64", "float", "double", "byte", "binary", "password"])
_MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions"])
_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_SINGLE = frozenset(["items", "additionalItems", "additionalProperties"])
# Where a value is of another type, the engine's error does not name its place.
_TYPES: Mapping[str, type[Any]] = {
    **dict.fromkeys(_MAPS, dict),
    **dict.fromkeys((*_LISTS, "enum", "required"), list),
    **dict.fromkeys(("pattern", "format", "$ref"), str),
}
# The engine's own options: the server sets them, a client can't.
OPTIONS = "x-guidance"


def prepared(schema: object, param: str, *, lenient: bool = False) -> Any:
    """A copy of a schema for the engine. Raises BadRequest with `param` and the place in the
    schema.

    With `lenient`, for schemas that promise nothing, unsupported keywords are dropped instead of
    raising BadRequest.
    """
    if _deeper_than(schema, MAX_DEPTH):
        raise BadRequest(f"{param} is nested more than {MAX_DEPTH} levels deep", param=param)
    return _Preparation(param, lenient).schema(schema, "")


def _deeper_than(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return False
    return True


def _inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


class _Preparation:
    def __init__(self, param: str, lenient: bool) -> None:
        self._param = param
        self._lenient = lenient

    def schema(self, schema: object, where: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._bad(where, "a schema must be an object or a boolean")
        return {
            key: self._value(key, value, f"{where}/{key}")
            for key, value in schema.items()
            if self._counts(key, value, f"{where}/{key}")
        }

    def _counts(self, key: str, value: object, where: str) -> bool:
        if key == OPTIONS or (key == "format" and value in list(_OPENAPI_FORMATS)):
            return False
        if key not in _UNSUPPORTED:
            return True
        if not self._lenient and (key not in _IDLE or value is not _IDLE[key]):
            raise self._bad(where, f"the keyword '{key}' is not supported")
        return False

    def _value(self, key: str, value: Any, where: str) -> Any:
        if key in _MAPS and isinstance(value, dict):
            return {name: self.schema(inner, f"{where}/{name}") for name, inner in value.items()}
        if (key in _LISTS or key == "items") and isinstance(value, list):
            return [self.schema(inner, f"{where}/{i}") for i, inner in enumerate(value)]
        if not isinstance(value, _TYPES.get(key, object)):
            raise self._bad(where, f"'{key}' has a value of the wrong type")
        return self.schema(value, where) if key in _SINGLE else value

    def _bad(self, where: str, message: str) -> BadRequest:
        at = f" at {where[:200]}" if where else ""
        return BadRequest(
            f"{self._param} is not a usable JSON schema: {message}{at}", param=self._param
        )
