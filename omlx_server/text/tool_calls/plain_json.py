"""Writes Python values of a parser (tuples, sets, bytes, NaN) as JSON text."""

import json
import math
from collections.abc import Mapping
from typing import Any

from omlx_server.text.encoding.utf8 import whole


def dumped(value: Any) -> str:
    """Raises RecursionError for too deep nesting, ValueError for an integer of too many digits."""
    return json.dumps(_plain(value), ensure_ascii=False)


def json_object(members: Mapping[str, str]) -> str:
    """Return an object of members whose values are JSON text."""
    return "{" + ", ".join(f"{dumped(key)}: {value}" for key, value in members.items()) + "}"


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return whole(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {whole(str(key)): _plain(inner) for key, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(inner) for inner in value]
    return whole(str(value))
