"""Rewrites `patternProperties` and `propertyNames` into a form that the engine enforces."""

import re
from collections.abc import Mapping
from typing import Any

# Parts of a pattern that look around or back, and those in which such characters mean themselves.
_PATTERN_PARTS = re.compile(
    r"(?P<unusable>\(\?(?:<?[=!]|>|P=|#)|\\[bBGZk0-9<>])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?", re.DOTALL
)
_ANNOTATIONS = frozenset(["title", "description", "examples", "$comment", "format", "default"])


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
