"""What a route takes and gives, as its decorator says it. Values only: nothing is worked out before
somebody asks for the document (document.py)."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

EXTRA = "x-operation"
"""Under this name FastAPI keeps an Operation with its route."""

# Statuses besides those that every route may have.
MODEL = (404,)
"""The request names a model, or something else that may not be there."""
WORK = (429, 503, 504)
"""The engine is full, is not running, or takes too long."""
STATE = (503,)
"""The engine is not running."""


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter in the address, which may be left out."""

    name: str
    kind: Any
    about: str


@dataclass(frozen=True, slots=True)
class Header:
    """Of the answer. One that is not `always` there comes when there is something to tell."""

    name: str
    about: str
    always: bool = False


@dataclass(frozen=True, slots=True)
class Bytes:
    """Content that is no JSON."""

    media: tuple[str, ...]
    about: str


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of server-sent events. `data`: the type of what stands in each. `named`: each has an
    event's name, the `type` in its data. `done`: the last one says [DONE] instead."""

    data: Any
    named: bool = False
    done: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """`tag` is the group it belongs to. Types are whatever pydantic can make a schema of.

    `answer` None: there is none but an error. `may_fail`: statuses of its own. `sick`: the answer
    of a 503, where that is no error. `is_open`: no key is needed.
    """

    tag: str
    answer: Any
    body: type[BaseModel] | Bytes | None = None
    events: Events | None = None
    query: tuple[Query, ...] = ()
    headers: tuple[Header, ...] = ()
    may_fail: tuple[int, ...] = ()
    sick: Any = None
    is_open: bool = False


def described(
    tag: str,
    answer: Any,
    *,
    body: type[BaseModel] | Bytes | None = None,
    events: Events | None = None,
    query: tuple[Query, ...] = (),
    headers: tuple[Header, ...] = (),
    may_fail: tuple[int, ...] = (),
    sick: Any = None,
    is_open: bool = False,
) -> dict[str, Any]:
    """`openapi_extra` of a route."""
    operation = Operation(tag, answer, body, events, query, headers, may_fail, sick, is_open)
    return {EXTRA: operation}
