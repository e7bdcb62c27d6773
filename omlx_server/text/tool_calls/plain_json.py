"""Writes Python values of a parser (tuples, sets, bytes, NaN) as JSON text."""

import json
import math
from collections.abc import Mapping
from typing import Any

from omlx_server.text.encoding.utf8 import without_surrogates


def to_json(value: Any) -> str:
    """Raises RecursionError for too deep nesting, ValueError for an integer of too many digits."""
    return json.dumps(_as_plain(value), ensure_ascii=False)


def json_object(members: Mapping[str, str]) -> str:
    """Return an object of members whose values are JSON text."""
    return "{" + ", ".join(f"{to_json(key)}: {value}" for key, value in members.items()) + "}"


def _as_plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return without_surrogates(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {without_surrogates(str(key)): _as_plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_as_plain(item) for item in value]
    return without_surrogates(str(value))
