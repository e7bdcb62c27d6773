"""One HTTP request and its answer, with an id for its log lines.

The id is the client's `x-request-id` if that looks like an id: any other text could be private. The
last log line has only names that the server knows (or the path without a route); never a query, a
key, a prompt or an answer. Error messages are there only where they repeat nothing of the request
(OmlxError.reason).
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakValueDictionary

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx_server.api.http import anthropic_errors as anthropic
from omlx_server.core.request import Miss
from omlx_server.errors import OmlxError

_log = logging.getLogger(__name__)
REQUEST_ID = "x-request-id"
WARNINGS = "x-omlx-warnings"
_MOST_WARNINGS = 8
_SANE = re.compile(r"(?:[a-z]{1,8}[-_])?[0-9A-Fa-f][0-9A-Fa-f-]{6,62}[0-9A-Fa-f]")
_QUIET = ("GET", "HEAD", "OPTIONS")
_UNKNOWN = "unknown"
_LONGEST_PATH = _LONGEST_REASON = 200
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_ODD = re.compile(r"[^!-~]")
_CLIENT_LEFT = "client_left"
_NOT_READY = 503
_WORDS: Final = {
    "model": ", {}",
    "prompt_tokens": ", {} tokens in",
    "cached_tokens": ", {} cached",
    "cache_miss": " ({})",
    "completion_tokens": ", {} out",
    "ttft_seconds": ", first after {} s",
    "tokens_per_second": ", {} tok/s",
    "finish_reason": ", {}",
    "error": ", {}",
    "param": ", param {}",
    "reason": ", {}",
    "path": ", path {}",
    "warnings": "; {}",
}

Fields = dict[str, str | int | float]


@dataclass(slots=True, eq=False)
class Phases:
    """Times of one prompt (time.monotonic() seconds) and its token counts. `first` and `last` are
    tokens of any choice; `begun` counts choices with a token."""

    prompt_tokens: int
    queued: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    restored: tuple[float, float] | None = None
    first: float | None = None
    last: float | None = None
    cached_tokens: int = 0
    miss: Miss = Miss.NONE
    generated: int = 0
    begun: int = 0
    finished: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Exchange:
    """One HTTP request and its answer; times are time.monotonic() seconds.

    `parent` is the `traceparent` header, `route` the pattern of the path, `about` the model of an
    admin route, `encoded` an encoder's tokens, `body` bytes. `afterwards` run when the answer was
    sent or given up.
    """

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
    about: str = ""
    problem: str = ""
    param: str = ""
    reason: str = ""
    encoded: int = 0
    body: int = 0
    warnings: list[str] = field(default_factory=list)


class ExchangeLog(Protocol):
    def begins(self, exchange: Exchange) -> None: ...
    def ends(self, exchange: Exchange) -> None: ...


class Tracer(Protocol):
    def record(self, exchange: Exchange) -> None: ...
    def shutdown(self) -> None: ...


_CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
# Exchanges by the id of their engine request, for log lines of other threads.
_BY_ENGINE_ID: Final[MutableMapping[str, Exchange]] = WeakValueDictionary()


def current() -> Exchange:
    """Return the current exchange; outside of one, a new one with an empty id."""
    return _CURRENT.get() or Exchange("")


def request_id() -> str | None:
    return current().id or None


def afterwards(call: Callable[[], None]) -> None:
    """Run `call` when the exchange has ended; at once outside of one."""
    exchange = _CURRENT.get()
    if exchange is None:
        call()
    else:
        exchange.afterwards.append(call)


def failed(error: OmlxError) -> None:
    exchange = current()
    exchange.problem = error.code or error.kind
    exchange.param, exchange.reason = error.param or "", error.reason


def warned(text: str) -> None:
    """Warn the client in a header, and the log. `text` is printable ASCII with nothing private."""
    warnings = current().warnings
    if text not in warnings and len(warnings) < _MOST_WARNINGS:
        warnings.append(text)


def left_out(types: Iterable[str]) -> None:
    """Warn that tools and items of these types are left out."""
    named = {kind if _TYPE.fullmatch(kind) else "an odd type" for kind in types}
    if named:
        warned(f"left out, as this server can't do it: {', '.join(sorted(named)[:_MOST_WARNINGS])}")


def left() -> None:
    current().problem = _CLIENT_LEFT


def known_as(engine_id: str) -> None:
    """Let log lines that name an engine request carry the exchange's id."""
    _BY_ENGINE_ID[engine_id] = current()


def of_engine_id(engine_id: str) -> Exchange | None:
    return _BY_ENGINE_ID.get(engine_id)


def name_of(record: logging.LogRecord) -> str:
    """Return the id of the exchange of a log line, or ""."""
    exchange = _CURRENT.get()
    if exchange is None and isinstance(record.args, tuple):
        exchanges = (_BY_ENGINE_ID.get(arg) for arg in record.args if isinstance(arg, str))
        exchange = next(filter(None, exchanges), None)
    return "" if exchange is None else exchange.id


def id_for(headers: Headers) -> str:
    """Return the client's own id if it looks like one, or a new one."""
    id = headers.get(REQUEST_ID, "")
    return id if _SANE.fullmatch(id) else f"req_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """ASGI middleware that makes an exchange of each HTTP request. `count` gets method, route and
    status, 0 where no response began."""

    app: ASGIApp
    tracer: Tracer | None
    routes: Sequence[Route]
    count: Callable[[str, str, int], None]
    log: ExchangeLog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers_in = Headers(scope=scope)
        parent = headers_in.get("traceparent", "")
        exchange = Exchange(id_for(headers_in), scope["method"], parent)
        # It is not reset: each request runs in a task of its own, in which uvicorn may still log.
        _CURRENT.set(exchange)
        self.log.begins(exchange)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = exchange.id
                if exchange.warnings:
                    headers[WARNINGS] = "; ".join(exchange.warnings)
                if anthropic.applies_to(scope["path"]):
                    headers[anthropic.REQUEST_ID] = exchange.id
            await send(message)

        try:
            await self.app(scope, receive, named)
        finally:
            self._end(exchange, scope)

    def _end(self, exchange: Exchange, scope: Scope) -> None:
        exchange.ended = time.monotonic()
        for call in exchange.afterwards:
            call()
        exchange.route = self._route_of(scope)
        self.count(exchange.method, exchange.route, exchange.status)
        self.log.ends(exchange)
        _tell(exchange, scope)
        if self.tracer is not None:
            self.tracer.record(exchange)

    def _route_of(self, scope: Scope) -> str:
        if "route" in scope:
            return str(getattr(scope["route"], "path", _UNKNOWN))
        routes = routes_at(self.routes, scope["path"])
        return routes[0].path if routes else _UNKNOWN


def _tell(exchange: Exchange, scope: Scope) -> None:
    seconds = exchange.ended - exchange.started
    more = {**work_of(exchange), **_named(exchange)}
    if exchange.route == _UNKNOWN:
        more["path"] = path_of(scope)
    head = {"method": exchange.method, "route": exchange.route, "status": exchange.status}
    fields = {**head, "seconds": round(seconds, 6), **more}
    has_failed = exchange.status >= 400 and exchange.status != _NOT_READY
    is_quiet = exchange.method in _QUIET and not has_failed
    _log.log(
        logging.DEBUG if is_quiet else logging.INFO,
        "%s %s: %s in %.3f s%s",
        exchange.method,
        exchange.route,
        exchange.status or "no answer",
        seconds,
        _in_words(more),
        extra={"fields": fields},
    )


def _named(exchange: Exchange) -> Fields:
    named = {
        "model": _in_one_line(exchange.model or exchange.about),
        "error": exchange.problem,
        "param": exchange.param,
        "reason": _in_one_line(exchange.reason),
        "warnings": "; ".join(exchange.warnings),
    }
    return {name: text for name, text in named.items() if text}


def work_of(exchange: Exchange) -> Fields:
    """Return token counts and times of a request, empty without a prompt. `tokens_per_second`
    leaves out the first token of each choice."""
    phases, started = exchange.phases, exchange.started
    if not phases:
        return {"prompt_tokens": exchange.encoded} if exchange.encoded else {}
    fields: Fields = {
        "prompt_tokens": sum(one.prompt_tokens for one in phases),
        "cached_tokens": sum(one.cached_tokens for one in phases),
        "completion_tokens": sum(one.generated for one in phases),
    }
    if misses := {one.miss.value for one in phases if one.miss is not Miss.NONE}:
        fields["cache_miss"] = ",".join(sorted(misses))
    first = min((one.first for one in phases if one.first is not None), default=None)
    last = max((one.last for one in phases if one.last is not None), default=None)
    if first is not None and last is not None:
        fields["ttft_seconds"] = round(first - started, 6)
        tokens = sum(one.generated - one.begun for one in phases)
        if tokens > 0 and last > first:
            fields["tokens_per_second"] = round(tokens / (last - first), 1)
    reasons = {reason for one in phases for reason in one.finished}
    fields["finish_reason"] = ",".join(sorted(reasons)) or "interrupted"
    return fields


def path_of(scope: Scope) -> str:
    return shown_path(scope.get("raw_path") or scope["path"].encode())


def shown_path(raw: bytes) -> str:
    """Return a path for the log, without its query and in one line."""
    path = raw.partition(b"?")[0].decode("latin-1")
    shown = _ODD.sub(lambda match: f"%{ord(match[0]):02X}", path[: _LONGEST_PATH + 1])
    return shown if len(shown) <= _LONGEST_PATH else f"{shown[:_LONGEST_PATH]}..."


def _in_one_line(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= _LONGEST_REASON else f"{shown[:_LONGEST_REASON]}..."


def _in_words(fields: Fields) -> str:
    words_of = ((words, fields[name]) for name, words in _WORDS.items() if name in fields)
    return "".join(
        words.format(round(v, 3) if isinstance(v, float) else v) for words, v in words_of
    )


def routes_at(routes: Sequence[Route], path: str) -> list[Route]:
    """Return the routes with this very pattern, otherwise those that match."""
    exact = [route for route in routes if route.path == path]
    return exact or [route for route in routes if route.path_regex.match(path)]
