"""One HTTP request and its answer, by a name that every log line of it carries.

The name is the client's own `x-request-id` where that looks like an id (hexadecimal, as UUIDs and
trace ids are, behind a short prefix at most): anything else could be private, and would stand in
the log. It goes back as a header of the same name, whatever became of the request.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakValueDictionary

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx_server.api.http import anthropic_errors as anthropic
from omlx_server.api.http.access_line import in_words, shown_path, work
from omlx_server.api.http.phases import Phases
from omlx_server.errors import OmlxError

_log = logging.getLogger(__name__)
REQUEST_ID = "x-request-id"
_SANE = re.compile(r"(?:[a-z]{1,8}[-_])?[0-9A-Fa-f][0-9A-Fa-f-]{6,62}[0-9A-Fa-f]")
_QUIET = ("GET", "HEAD", "OPTIONS")
_UNKNOWN = "unknown"


@dataclass(slots=True, eq=False, weakref_slot=True)
class Exchange:
    """`route` is a pattern: a path can hold what a client chose. `model` is the first name of the
    one that was asked; `problem` the code of the error that was the answer, or its end. Times are
    time.monotonic(). `afterwards` is called when the answer was sent, or given up."""

    id: str
    method: str = ""
    parent: str = ""
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    route: str = _UNKNOWN
    status: int = 0
    phases: list[Phases] = field(default_factory=list)
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    model: str = ""
    problem: str = ""
    body: int = 0


class Tracer(Protocol):
    """Who is told of every exchange that has ended."""

    def record(self, exchange: Exchange) -> None: ...
    def shutdown(self) -> None: ...


_CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
# As process-wide as the log is, for lines of other threads; an entry goes with its exchange.
_BY_ENGINE_ID: Final[MutableMapping[str, Exchange]] = WeakValueDictionary()


def current() -> Exchange | None:
    """That in whose context this runs; worker threads of asyncio have it, too."""
    return _CURRENT.get()


def request_id() -> str | None:
    """The name of the current exchange."""
    exchange = _CURRENT.get()
    return None if exchange is None else exchange.id


def begun() -> float:
    """When the current exchange has begun: who waited for a model has waited already."""
    exchange = _CURRENT.get()
    return time.monotonic() if exchange is None else exchange.started


def afterwards(call: Callable[[], None]) -> None:
    """To be called when the current exchange has ended; now, if there is none."""
    exchange = _CURRENT.get()
    if exchange is None:
        call()
    else:
        exchange.afterwards.append(call)


def asks(model: str) -> None:
    """The current exchange is about this model, by the first of its names."""
    exchange = _CURRENT.get()
    if exchange is not None:
        exchange.model = model


def failed(error: OmlxError) -> None:
    """The current exchange is answered, or ended, with an error."""
    exchange = _CURRENT.get()
    if exchange is not None:
        exchange.problem = error.code or error.kind


def has_body(size: int) -> None:
    """So many bytes came with the current exchange."""
    exchange = _CURRENT.get()
    if exchange is not None:
        exchange.body = size


def body_size() -> int:
    """The bytes that came with the current exchange."""
    exchange = _CURRENT.get()
    return 0 if exchange is None else exchange.body


def known_as(engine_id: str) -> None:
    """From now on what the engine logs of this id belongs to the current exchange."""
    exchange = _CURRENT.get()
    if exchange is not None:
        _BY_ENGINE_ID[engine_id] = exchange


def name_of(record: logging.LogRecord) -> str:
    """The id of the exchange that a log line belongs to; empty if it belongs to none."""
    exchange = _CURRENT.get()
    if exchange is None and isinstance(record.args, tuple):
        found = (_BY_ENGINE_ID.get(arg) for arg in record.args if isinstance(arg, str))
        exchange = next(filter(None, found), None)
    return "" if exchange is None else exchange.id


def id_for(headers: Headers) -> str:
    """The client's, or a new one."""
    given = headers.get(REQUEST_ID, "")
    return given if _SANE.fullmatch(given) else f"req_{uuid.uuid4().hex}"


class Exchanges:
    """Around the whole app, so that errors have an id, too. Pure ASGI, as `Guard` is. `routes`: all
    of the app's. `count` is told method, route and status of each."""

    def __init__(
        self,
        app: ASGIApp,
        tracer: Tracer | None,
        routes: Sequence[Route] = (),
        count: Callable[[str, str, int], None] = lambda method, route, status: None,
    ) -> None:
        self._app = app
        self._tracer = tracer
        self._routes = routes
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope)
        parent = given.get("traceparent", "")
        exchange = Exchange(id_for(given), scope["method"], parent)
        # Never taken back: each request runs in a task of its own, and uvicorn logs in it last.
        _CURRENT.set(exchange)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = exchange.id
                if anthropic.applies_to(scope["path"]):
                    headers[anthropic.REQUEST_ID] = exchange.id
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            self._end(exchange, scope)

    def _end(self, exchange: Exchange, scope: Scope) -> None:
        exchange.ended = time.monotonic()
        for call in exchange.afterwards:
            call()
        exchange.route = self._route_of(scope)
        self._count(exchange.method, exchange.route, exchange.status)
        _tell(exchange, scope)
        if self._tracer is not None:
            self._tracer.record(exchange)

    def _route_of(self, scope: Scope) -> str:
        """What the guard has refused never came to the router."""
        if "route" in scope:
            return str(getattr(scope["route"], "path", _UNKNOWN))
        return pattern_of(self._routes, scope["path"])


def _tell(exchange: Exchange, scope: Scope) -> None:
    """The last line of a request. What was only looked at is worth one if something is wrong."""
    seconds = exchange.ended - exchange.started
    more = work(exchange.phases, exchange.started)
    if exchange.model:
        more["model"] = exchange.model
    if exchange.problem:
        more["error"] = exchange.problem
    if exchange.route == _UNKNOWN:
        more["path"] = shown_path(scope.get("raw_path") or scope["path"].encode())
    head = {"method": exchange.method, "route": exchange.route, "status": exchange.status}
    fields = {**head, "seconds": round(seconds, 6), **more}
    is_refusal = 400 <= exchange.status < 500
    is_quiet = exchange.method in _QUIET and not is_refusal
    _log.log(
        logging.DEBUG if is_quiet else logging.INFO,
        "%s %s: %s in %.3f s%s",
        exchange.method,
        exchange.route,
        exchange.status or "no answer",
        seconds,
        in_words(more),
        extra={"fields": fields},
    )


def pattern_of(routes: Sequence[Route], path: str) -> str:
    """That of the route which a path would be given to."""
    exact = (route.path for route in routes if route.path == path)
    alike = (route.path for route in routes if route.path_regex.match(path))
    return next(exact, None) or next(alike, _UNKNOWN)
