"""Descriptions of routes as plain values: no schema is made at import time."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

from pydantic import BaseModel

EXTRA = "x-operation"
"""The key of a route's `openapi_extra` under which its Operation is kept."""

# Error statuses besides those of every route.
MODEL = (404,)
"""For a route whose request names something that may not exist."""
WORK = (429, 503, 504)
"""For a route that queues work: the engine is full, is not running, or takes too long."""
STATE = (503,)
"""For a route that asks the engine without queueing work: the engine is not running."""


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    kind: Any
    about: str


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """A response header, in each response if `always`."""

    name: str
    about: str
    always: bool = False


@dataclass(frozen=True, slots=True)
class Bytes:
    """A body or an answer that is not JSON; `media` are its media types."""

    media: tuple[str, ...]
    about: str


@dataclass(frozen=True, slots=True)
class Events:
    """Server-sent events with JSON of type `data`."""

    data: Any
    named: bool = False  # by the `type` in the data
    done: bool = False  # whether a last `[DONE]` follows


@dataclass(frozen=True, slots=True)
class Operation:
    """The types of one route's input and answers, given as `openapi_extra=Operation(...).extra`."""

    tag: str
    answer: Any
    _: KW_ONLY
    body: type[BaseModel] | Bytes | None = None
    events: Events | None = None
    lines: Any = None  # the type of each line in a stream
    page: Bytes | None = None  # what a browser gets instead
    query: tuple[Query, ...] = ()
    headers: tuple[ResponseHeader, ...] = ()
    may_fail: tuple[int, ...] = ()  # error statuses besides those of every route
    unhealthy: Any = None  # the body of a 503 that is no error
    is_open: bool = False

    @property
    def extra(self) -> dict[str, Any]:
        return {EXTRA: self}
