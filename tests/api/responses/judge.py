"""The openai package's own types, used strictly: what they do not know is an error, too."""

from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from openai import BaseModel
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

T = TypeVar("T")

# OpenAI sends these as well, although its types lack them.
KNOWN_EXTRAS = {"store", "bytes"}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def judged(kind: Any, data: Any) -> Any:
    """`data` as the package sees it."""
    found = _adapter(kind).validate_python(data, strict=True)
    assert set(_extras(found)) <= KNOWN_EXTRAS
    return found


def response(data: Any) -> Response:
    found = judged(Response, data)
    assert isinstance(found, Response)
    return found


def event(data: Any) -> Any:
    found = judged(ResponseStreamEvent, data)
    assert found.type == data["type"], "taken for another event"
    return found


def item_list(data: Any) -> ResponseItemList:
    found = judged(ResponseItemList, data)
    assert isinstance(found, ResponseItemList)
    return found


def _extras(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or ()
        for name in type(value).model_fields:
            yield from _extras(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from _extras(item)
