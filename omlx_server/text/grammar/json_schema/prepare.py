"""Prepares a client's JSON schema for the engine. Keywords that forbid nothing are dropped;
unknown ones stay."""

import logging
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from omlx_server.errors import BadRequest

# Parts of a pattern that look around or back, and those in which such characters mean themselves.
_PATTERN_PARTS = re.compile(
    r"(?P<unusable>\(\?(?:<?[=!]|>|P=|#)|\\[bBGZk0-9<>])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?", re.DOTALL
)
_ANNOTATIONS = frozenset(["title", "description", "examples", "$comment", "format", "default"])
MAX_DEPTH = 100
_TYPE_NAMES = ("string", "number", "integer", "boolean", "null", "array", "object")
# The engine's own options: the server sets them, a client can't.
OPTIONS = "x-guidance"
_LOOKS_AROUND = " with a pattern that looks around or back"


def is_usable(pattern: str) -> bool:
    return not any(part["unusable"] for part in _PATTERN_PARTS.finditer(pattern))


def loosen_patterns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that allows all that `schema` allows, and more where patterns could
    overlap."""
    patterns = schema["patternProperties"]
    usable = {pattern: value for pattern, value in patterns.items() if is_usable(pattern)}
    copy = {**schema, "patternProperties": usable}
    if len(usable) < len(patterns):
        copy["additionalProperties"] = True
    if len(usable) > 1 or (usable and schema.get("properties")):
        copy["patternProperties"] = {"|".join(f"(?:{pattern})" for pattern in usable): True}
    return copy


def with_property_names(schema: Mapping[str, Any], names: Any) -> dict[str, Any] | None:
    """Return `schema` with its property names held to `names`; None where that can't be
    enforced."""
    name_schema = {} if names is True else names
    if not isinstance(name_schema, Mapping):
        return None
    name_schema = {key: value for key, value in name_schema.items() if key not in _ANNOTATIONS}
    if name_schema.pop("type", "string") != "string":
        return None
    if not name_schema:
        return dict(schema)
    if len(name_schema) > 1 or any(key in schema for key in ("properties", "patternProperties")):
        return None
    [(key, value)] = name_schema.items()
    others = schema.get("additionalProperties", True)
    if key == "pattern" and isinstance(value, str) and is_usable(value):
        return {**schema, "patternProperties": {value: others}, "additionalProperties": False}
    listed = [value] if key == "const" else value
    if key not in ("const", "enum") or not isinstance(listed, list):
        return None
    unlisted = {name: others for name in listed if isinstance(name, str)}
    return {**schema, "properties": unlisted, "additionalProperties": False}


def resolve_pointer(root: Mapping[str, Any], reference: str) -> Any:
    """Return the part of `root` that a JSON pointer refers to, or None."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    target: Any = root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and key in target:
            target = target[key]
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


_log = logging.getLogger(__name__)


_UNSUPPORTED = frozenset(
    [
        *("not", "if", "then", "else"),
        *("contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems"),
        *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"),
    ]
)
# With these values a keyword forbids nothing.
_IDLE_VALUES: Mapping[str, bool] = {
    "uniqueItems": False,
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
}
# The formats that the engine enforces. By JSON Schema all others only annotate.
_FORMATS = frozenset(
    ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"]
)
_SCHEMA_MAPS = frozenset(["properties", "patternProperties", "$defs", "definitions"])
_SCHEMA_LISTS = frozenset(["allOf", "anyOf", "oneOf", "prefixItems"])
_SINGLE_SCHEMAS = frozenset(["items", "additionalItems", "additionalProperties"])
_COUNTS = frozenset(
    f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties")
)
# Where a value is of another type, the engine's error does not name its place.
_VALUE_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(_SCHEMA_MAPS, dict),
    **dict.fromkeys((*_SCHEMA_LISTS, "enum", "required"), list),
    **dict.fromkeys(("pattern", "format", "$ref"), str),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), int | float),
}


def prepare_schema(schema: object, param: str, *, lenient: bool = False) -> Any:
    """Return a prepared copy. Raises BadRequest with `param` and the place of what can't be
    enforced; with `lenient` it is left out, with a warning."""
    if _deeper_than(schema, MAX_DEPTH):
        raise BadRequest(f"{param} is nested more than {MAX_DEPTH} levels deep", param=param)
    preparation = _Preparation(schema, param, lenient)
    result = preparation.prepare(schema, "")
    if preparation.left_out:
        keywords = ", ".join(sorted(preparation.left_out))
        _warn(f"{param}: left out what can't be enforced: {keywords}")
    return result


@lru_cache(1000)
def _warn(message: str) -> None:
    _log.warning("%s", message)


def _deeper_than(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for value in level for child in _children(value)]
        if not level:
            return False
    return True


def _children(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def values_within(value: object) -> Iterator[object]:
    pending = [value]
    while pending:
        found = pending.pop()
        yield found
        pending += _children(found)


def _why_unenforced(key: str, value: Any) -> str | None:
    """Return what of a keyword can't be enforced, "" for all of it; None for nothing."""
    if key in _UNSUPPORTED:
        return ""
    if key == "pattern" and isinstance(value, str) and not is_usable(value):
        return _LOOKS_AROUND
    if key in ("enum", "const"):
        numbers = [found for found in values_within(value) if isinstance(found, int)]
        if any(abs(number) > 1 << 53 for number in numbers):
            return " with an integer beyond 2^53"
    return None


def _is_of_right_type(key: str, value: Any) -> bool:
    if key in _COUNTS:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if key != "type":
        return True
    return all(kind in _TYPE_NAMES for kind in (value if isinstance(value, list) else [value]))


class _Preparation:
    """Prepares one schema. `left_out`: the keywords that could not be enforced."""

    def __init__(self, root: Any, param: str, lenient: bool) -> None:
        self._root = root
        self._param = param
        self._lenient = lenient
        self.left_out = set[str]()

    def prepare(self, schema: object, where: str) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._bad_schema(where, "a schema must be an object or a boolean")
        result = {
            key: self._prepare_value(key, value, f"{where}/{key}")
            for key, value in schema.items()
            if self._is_kept(key, value, f"{where}/{key}")
        }
        return self._rewrite_names(result, where)

    def _rewrite_names(self, schema: dict[str, Any], where: str) -> dict[str, Any]:
        if "propertyNames" in schema:
            names = schema.pop("propertyNames")
            if isinstance(names, dict) and isinstance(names.get("$ref"), str):
                names = resolve_pointer(self._root, names["$ref"])
            with_names = with_property_names(schema, names)
            if with_names is None:
                self._leave_out("propertyNames", "", f"{where}/propertyNames")
            else:
                schema = with_names
        if not schema.get("patternProperties"):
            return schema
        if not all(map(is_usable, schema["patternProperties"])):
            self._leave_out("patternProperties", _LOOKS_AROUND, f"{where}/patternProperties")
        loosened = loosen_patterns(schema) if self._lenient else schema
        if loosened != schema:
            self.left_out.add("patternProperties")
        return loosened

    def _leave_out(self, key: str, why: str, where: str) -> None:
        if not self._lenient:
            raise self._bad_schema(where, f"the keyword '{key}'{why} is not supported")
        self.left_out.add(key)

    def _is_kept(self, key: str, value: object, where: str) -> bool:
        if key == OPTIONS or (key in _IDLE_VALUES and value is _IDLE_VALUES[key]):
            return False
        if key == "format" and isinstance(value, str):
            return value in _FORMATS
        why = _why_unenforced(key, value)
        if why is not None:
            self._leave_out(key, why, where)
        return why is None

    def _prepare_value(self, key: str, value: Any, where: str) -> Any:
        if key in _SCHEMA_MAPS and isinstance(value, dict):
            return {name: self.prepare(child, f"{where}/{name}") for name, child in value.items()}
        if (key in _SCHEMA_LISTS or key == "items") and isinstance(value, list):
            return [self.prepare(child, f"{where}/{i}") for i, child in enumerate(value)]
        if key in _COUNTS and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not (isinstance(value, _VALUE_TYPES.get(key, object)) and _is_of_right_type(key, value)):
            raise self._bad_schema(where, f"'{key}' has a value of the wrong type")
        return self.prepare(value, where) if key in _SINGLE_SCHEMAS else value

    def _bad_schema(self, where: str, message: str) -> BadRequest:
        at = f" at {where[:200]}" if where else ""
        return BadRequest(
            f"{self._param} is not a usable JSON schema: {message}{at}", param=self._param
        )
