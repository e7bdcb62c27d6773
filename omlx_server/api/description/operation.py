"""Descriptions of routes as plain values: no schema is made at import time."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

from pydantic import BaseModel

EXTRA = "x-operation"
"""The key of a route's `openapi_extra` under which its Operation is kept."""

# Statuses besides those that every route may have.
MODEL = (404,)
"""For a route whose request names a model, or something else that may not exist."""
WORK = (429, 503, 504)
"""For a route that queues work: the engine is full, is not running, or takes too long."""
STATE = (503,)
"""For a route that asks the engine without queueing work: the engine is not running."""


@dataclass(frozen=True, slots=True)
class Query:
    """An optional query parameter of a route."""

    name: str
    kind: Any
    about: str


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """A response header, sent with each response only if `always`."""

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
    """A stream of server-sent events with JSON of type `data`. `named`: the event's name is the
    `type` in its data. `done`: the last event is `[DONE]`."""

    data: Any
    named: bool = False
    done: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """The input and the answers of one route, given as `openapi_extra=Operation(...).extra`. Types
    are those of which pydantic makes a schema, or Bytes.

    Without `answer` the route answers with `events` or errors only. `may_fail`: error statuses
    besides those of every route. `sick`: the body of a 503 that is no error envelope. `page`: what
    a browser gets instead. `lines`: the type of each line of a stream of JSON lines.
    """

    tag: str
    answer: Any
    _: KW_ONLY
    body: type[BaseModel] | Bytes | None = None
    events: Events | None = None
    lines: Any = None
    page: Bytes | None = None
    query: tuple[Query, ...] = ()
    headers: tuple[ResponseHeader, ...] = ()
    may_fail: tuple[int, ...] = ()
    sick: Any = None
    is_open: bool = False

    @property
    def extra(self) -> dict[str, Any]:
        return {EXTRA: self}
