"""The official packages' own types, used strictly: a field that they do not know is an error, and
so is one of another type."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson
from pydantic import BaseModel, TypeAdapter

from tests.api.published.ours import OURS


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def judged(kind: Any, data: Any) -> Any:
    """`data` as the package sees it. Raises ValidationError and AssertionError."""
    found = _adapter(kind).validate_json(orjson.dumps(data), strict=True)
    unknown = set(_extras(found)) - OURS.keys()
    assert not unknown, f"fields that neither the package nor we have: {sorted(unknown)}"
    return found


def _extras(value: Any) -> Iterator[str]:
    """The fields that the package does not know, each behind the name of its type."""
    if isinstance(value, BaseModel):
        name = type(value).__name__
        yield from (f"{name}.{field}" for field in value.model_extra or ())
        for field in type(value).model_fields:
            yield from _extras(getattr(value, field))
    elif isinstance(value, list):
        for item in value:
            yield from _extras(item)
