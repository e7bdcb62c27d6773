"""Prepares a client's JSON schema for the engine. Keywords that forbid nothing are dropped;
unknown ones stay."""

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from omlx_server.errors import BadRequest
from omlx_server.text.grammar.json_schema.names import is_usable, loosened, with_names
from omlx_server.text.grammar.json_schema.pointers import resolved

_log = logging.getLogger(__name__)

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
# The formats that the engine enforces. By JSON Schema all others only annotate.
_FORMATS = frozenset(
    ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"]
)
_MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions"])
_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_SINGLE = frozenset(["items", "additionalItems", "additionalProperties"])
_COUNTS = frozenset(
    f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties")
)
_KINDS = ("string", "number", "integer", "boolean", "null", "array", "object")
# Where a value is of another type, the engine's error does not name its place.
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(_MAPS, dict),
    **dict.fromkeys((*_LISTS, "enum", "required"), list),
    **dict.fromkeys(("pattern", "format", "$ref"), str),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), int | float),
}
# The engine's own options: the server sets them, a client can't.
OPTIONS = "x-guidance"


def prepared(schema: object, param: str, *, lenient: bool = False) -> Any:
    """Return a prepared copy. Raises BadRequest with `param` and the place of what can't be
    enforced; with `lenient` it is left out, with a warning."""
    if _deeper_than(schema, MAX_DEPTH):
        raise BadRequest(f"{param} is nested more than {MAX_DEPTH} levels deep", param=param)
    work = _Preparation(schema, param, lenient)
    result = work.schema(schema, "")
    if work.left_out:
        _warn(f"{param}: left out what can't be enforced: {', '.join(sorted(work.left_out))}")
    return result


@lru_cache(1000)
def _warn(message: str) -> None:
    _log.warning("%s", message)


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


_AROUND = " with a pattern that looks around or back"


def _unenforced(key: str, value: Any) -> str | None:
    if key in _UNSUPPORTED:
        return ""
    if key == "pattern" and isinstance(value, str) and not is_usable(value):
        return _AROUND
    if key in ("enum", "const") and _is_beyond_float(value):
        return " with an integer beyond 2^53"
    return None


def _is_beyond_float(value: Any) -> bool:
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, int) and abs(inner) > 1 << 53:
            return True
        pending += _inner(inner)
    return False


def _fits(key: str, value: Any) -> bool:
    if key in _COUNTS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if key != "type":
        return True
    return all(kind in _KINDS for kind in (value if isinstance(value, list) else [value]))


class _Preparation:
    """`left_out`: the keywords that could not be enforced."""

    def __init__(self, root: Any, param: str, lenient: bool) -> None:
        self._root = root
        self._param = param
        self._lenient = lenient
        self.left_out = set[str]()

    def schema(self, schema: object, where: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._bad(where, "a schema must be an object or a boolean")
        result = {
            key: self._value(key, value, f"{where}/{key}")
            for key, value in schema.items()
            if self._counts(key, value, f"{where}/{key}")
        }
        return self._by_names(result, where)

    def _by_names(self, made: dict[str, Any], where: str) -> dict[str, Any]:
        if "propertyNames" in made:
            names = made.pop("propertyNames")
            if isinstance(names, dict) and isinstance(names.get("$ref"), str):
                names = resolved(self._root, names["$ref"])
            named = with_names(made, names)
            if named is None:
                self._leave_out("propertyNames", "", f"{where}/propertyNames")
            made = made if named is None else named
        if not made.get("patternProperties"):
            return made
        if not all(map(is_usable, made["patternProperties"])):
            self._leave_out("patternProperties", _AROUND, f"{where}/patternProperties")
        loose = loosened(made) if self._lenient else made
        if loose != made:
            self.left_out.add("patternProperties")
        return loose

    def _leave_out(self, key: str, why: str, where: str) -> None:
        if not self._lenient:
            raise self._bad(where, f"the keyword '{key}'{why} is not supported")
        self.left_out.add(key)

    def _counts(self, key: str, value: object, where: str) -> bool:
        if key == OPTIONS or (key in _IDLE and value is _IDLE[key]):
            return False
        if key == "format" and isinstance(value, str):
            return value in _FORMATS
        why = _unenforced(key, value)
        if why is not None:
            self._leave_out(key, why, where)
        return why is None

    def _value(self, key: str, value: Any, where: str) -> Any:
        if key in _MAPS and isinstance(value, dict):
            return {name: self.schema(inner, f"{where}/{name}") for name, inner in value.items()}
        if (key in _LISTS or key == "items") and isinstance(value, list):
            return [self.schema(inner, f"{where}/{i}") for i, inner in enumerate(value)]
        if key in _COUNTS and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not (isinstance(value, _TYPES.get(key, object)) and _fits(key, value)):
            raise self._bad(where, f"'{key}' has a value of the wrong type")
        return self.schema(value, where) if key in _SINGLE else value

    def _bad(self, where: str, message: str) -> BadRequest:
        at = f" at {where[:200]}" if where else ""
        return BadRequest(
            f"{self._param} is not a usable JSON schema: {message}{at}", param=self._param
        )
