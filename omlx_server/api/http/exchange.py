"""One HTTP request and its answer, with an id for its log lines.

The id is the client's `x-request-id` if that looks like an id: any other text could be private. The
last log line has only names that the server knows (or the path without a route); never a query, a
key, a prompt, an answer, or an error message that repeats something of the request.
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

from omlx_server import clock
from omlx_server.api.http import anthropic_errors as anthropic
from omlx_server.core.request import Miss
from omlx_server.errors import OmlxError

_log = logging.getLogger(__name__)
REQUEST_ID = "x-request-id"
WARNINGS = "x-omlx-warnings"
_MOST_WARNINGS = 8
_CLIENT_ID = re.compile(r"(?:[a-z]{1,8}[-_])?[0-9A-Fa-f][0-9A-Fa-f-]{6,62}[0-9A-Fa-f]")
_QUIET_METHODS = ("GET", "HEAD", "OPTIONS")
_NO_ROUTE = "unknown"
_LONGEST_PATH = _LONGEST_REASON = 200
_PLAIN_TYPE = re.compile(r"[a-z][a-z0-9_]{0,39}")
_NOT_IN_LOGS = re.compile(r"[^!-~]")
_CLIENT_LEFT = "client_left"
_NOT_READY = 503
# How each field is said in the log line of an exchange, in this order.
_PHRASES: Final = {
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
    """Times of one prompt (clock.now() seconds) and its token counts, over all choices."""

    prompt_tokens: int
    queued: float = field(default_factory=clock.now)
    admitted: float | None = None
    restored: tuple[float, float] | None = None
    first: float | None = None  # when the first token came
    last: float | None = None
    cached_tokens: int = 0
    miss: Miss = Miss.NONE
    generated: int = 0
    begun: int = 0  # choices that have a token
    finished: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Exchange:
    """One HTTP request and its answer; times are clock.now() seconds. `afterwards` run when
    the answer was sent or given up."""

    id: str
    method: str = ""
    parent: str = ""  # the `traceparent` header
    started: float = field(default_factory=clock.now)
    at: float = field(default_factory=time.time)  # `started` since 1970
    ended: float = 0.0
    route: str = _NO_ROUTE  # the pattern of the path
    status: int = 0
    phases: list[Phases] = field(default_factory=list)
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    model: str = ""
    about: str = ""  # the model of an admin route
    problem: str = ""
    param: str = ""
    reason: str = ""
    encoded: int = 0  # tokens of an encoder
    body: int = 0  # bytes
    warnings: list[str] = field(default_factory=list)
    client: bytes = b""  # as CLIENT


class ExchangeLog(Protocol):
    """Notes what is under way, and what has ended."""

    def begins(self, exchange: Exchange) -> None: ...
    def ends(self, exchange: Exchange) -> None: ...


class Tracer(Protocol):
    """Makes OpenTelemetry spans of exchanges."""

    def record(self, exchange: Exchange) -> None: ...
    def shutdown(self) -> None: ...


_CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
# Exchanges by the id of their engine request, for log lines of other threads.
_BY_ENGINE_ID: Final[MutableMapping[str, Exchange]] = WeakValueDictionary()


def current_exchange() -> Exchange:
    """Return the current exchange; outside of one, a new one with an empty id."""
    return _CURRENT.get() or Exchange("")


def request_id() -> str | None:
    return current_exchange().id or None


def run_afterwards(call: Callable[[], None]) -> None:
    """Run `call` when the exchange has ended; at once outside of one."""
    exchange = _CURRENT.get()
    if exchange is None:
        call()
    else:
        exchange.afterwards.append(call)


def note_failure(error: OmlxError) -> None:
    """Note the error with which the exchange ends, for its log line."""
    exchange = current_exchange()
    exchange.problem = error.code or error.kind
    exchange.param, exchange.reason = error.param or "", error.reason


def warn_client(text: str) -> None:
    """Warn the client in a header, and the log. `text` is printable ASCII with nothing private."""
    warnings = current_exchange().warnings
    if text not in warnings and len(warnings) < _MOST_WARNINGS:
        warnings.append(text)


def warn_of_left_out(types: Iterable[str]) -> None:
    """Warn that tools and items of these types are left out."""
    shown_types = {kind if _PLAIN_TYPE.fullmatch(kind) else "an odd type" for kind in types}
    if shown_types:
        listed = ", ".join(sorted(shown_types)[:_MOST_WARNINGS])
        warn_client(f"left out, as this server can't do it: {listed}")


def note_client_left() -> None:
    current_exchange().problem = _CLIENT_LEFT


def link_engine_request(engine_id: str) -> None:
    """Let log lines that name an engine request carry the exchange's id."""
    _BY_ENGINE_ID[engine_id] = current_exchange()


def exchange_of_engine_id(engine_id: str) -> Exchange | None:
    return _BY_ENGINE_ID.get(engine_id)


def exchange_id_of(record: logging.LogRecord) -> str:
    """Return the id of the exchange of a log line, or ""."""
    exchange = _CURRENT.get()
    if exchange is None and isinstance(record.args, tuple):
        exchanges = (_BY_ENGINE_ID.get(arg) for arg in record.args if isinstance(arg, str))
        exchange = next(filter(None, exchanges), None)
    return "" if exchange is None else exchange.id


def id_for(headers: Headers) -> str:
    """Return the client's own id if it looks like one, or a new one."""
    id = headers.get(REQUEST_ID, "")
    return id if _CLIENT_ID.fullmatch(id) else f"req_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, eq=False)
class Exchanges:
    """ASGI middleware that makes an exchange of each HTTP request."""

    app: ASGIApp
    tracer: Tracer | None
    routes: Sequence[Route]
    count: Callable[[str, str, int], None]  # by method, route and status, 0 without a response
    log: ExchangeLog

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers_in = Headers(scope=scope)
        exchange = Exchange(id_for(headers_in), scope["method"], headers_in.get("traceparent", ""))
        # It is not reset: each request runs in a task of its own, in which uvicorn may still log.
        _CURRENT.set(exchange)
        self.log.begins(exchange)

        async def send_with_id(message: Message) -> None:
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
            await self.app(scope, receive, send_with_id)
        finally:
            self._end(exchange, scope)

    def _end(self, exchange: Exchange, scope: Scope) -> None:
        exchange.ended = clock.now()
        for call in exchange.afterwards:
            call()
        exchange.route = self._route_of(scope)
        self.count(exchange.method, exchange.route, exchange.status)
        self.log.ends(exchange)
        _log_end(exchange, scope)
        if self.tracer is not None:
            self.tracer.record(exchange)

    def _route_of(self, scope: Scope) -> str:
        if "route" in scope:
            return str(getattr(scope["route"], "path", _NO_ROUTE))
        routes = routes_at(self.routes, scope["path"])
        return routes[0].path if routes else _NO_ROUTE


def _log_end(exchange: Exchange, scope: Scope) -> None:
    seconds = exchange.ended - exchange.started
    more = {**work_of(exchange), **_text_fields(exchange)}
    if exchange.route == _NO_ROUTE:
        more["path"] = path_of(scope)
    outcome = {"method": exchange.method, "route": exchange.route, "status": exchange.status}
    fields = {**outcome, "seconds": round(seconds, 6), **more}
    has_failed = exchange.status >= 400 and exchange.status != _NOT_READY
    is_quiet = exchange.method in _QUIET_METHODS and not has_failed
    status = exchange.status or "no answer"
    text = f"{exchange.method} {exchange.route}: {status} in {seconds:.3f} s{_as_phrases(more)}"
    _log.log(logging.DEBUG if is_quiet else logging.INFO, "%s", text, extra={"fields": fields})


def _text_fields(exchange: Exchange) -> Fields:
    texts = {
        "model": _in_one_line(exchange.model or exchange.about),
        "error": exchange.problem,
        "param": exchange.param,
        "reason": _in_one_line(exchange.reason),
        "warnings": "; ".join(exchange.warnings),
    }
    return {name: text for name, text in texts.items() if text}


def work_of(exchange: Exchange) -> Fields:
    """Return token counts and times of a request, empty without a prompt."""
    prompts = exchange.phases
    if not prompts:
        return {"prompt_tokens": exchange.encoded} if exchange.encoded else {}
    fields: Fields = {
        "prompt_tokens": sum(prompt.prompt_tokens for prompt in prompts),
        "cached_tokens": sum(prompt.cached_tokens for prompt in prompts),
        "completion_tokens": sum(prompt.generated for prompt in prompts),
    }
    if misses := {prompt.miss.value for prompt in prompts if prompt.miss is not Miss.NONE}:
        fields["cache_miss"] = ",".join(sorted(misses))
    first = min((prompt.first for prompt in prompts if prompt.first is not None), default=None)
    last = max((prompt.last for prompt in prompts if prompt.last is not None), default=None)
    if first is not None and last is not None:
        fields["ttft_seconds"] = round(first - exchange.started, 6)
        # The time before the first token of each choice is no part of its speed.
        later_tokens = sum(prompt.generated - prompt.begun for prompt in prompts)
        if later_tokens > 0 and last > first:
            fields["tokens_per_second"] = round(later_tokens / (last - first), 1)
    reasons = {reason for prompt in prompts for reason in prompt.finished}
    fields["finish_reason"] = ",".join(sorted(reasons)) or "interrupted"
    return fields


def path_of(scope: Scope) -> str:
    return shown_path(scope.get("raw_path") or scope["path"].encode())


def shown_path(raw: bytes) -> str:
    """Return a path for the log, without its query and in one line."""
    path = raw.partition(b"?")[0].decode("latin-1")
    shown = _NOT_IN_LOGS.sub(lambda match: f"%{ord(match[0]):02X}", path[: _LONGEST_PATH + 1])
    return shown if len(shown) <= _LONGEST_PATH else f"{shown[:_LONGEST_PATH]}..."


def _in_one_line(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= _LONGEST_REASON else f"{shown[:_LONGEST_REASON]}..."


def _as_phrases(fields: Fields) -> str:
    phrases = []
    for name, phrase in _PHRASES.items():
        if name in fields:
            value = fields[name]
            phrases.append(phrase.format(round(value, 3) if isinstance(value, float) else value))
    return "".join(phrases)


def routes_at(routes: Sequence[Route], path: str) -> list[Route]:
    """Return the routes whose pattern is `path` itself, otherwise those that match it."""
    exact = [route for route in routes if route.path == path]
    return exact or [route for route in routes if route.path_regex.match(path)]
