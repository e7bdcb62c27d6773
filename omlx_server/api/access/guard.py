"""Who may talk to the server, checked before any route runs. The health routes and the files of the
page need no API key; Host and Origin are checked there as well.

It is plain ASGI: starlette's BaseHTTPMiddleware would hide a client's disconnect from the routes.
"""

import asyncio
import hmac
import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.context import ApiContext
from omlx_server.api.http.admin_access import TOKEN_HEADER, bearer_of
from omlx_server.api.http.errors import response
from omlx_server.api.http.exchange import current, left
from omlx_server.api.http.host import came_by_unix_socket, host_of
from omlx_server.api.http.sse import ClientGone
from omlx_server.errors import (
    BadRequest,
    Forbidden,
    NotAuthorized,
    OmlxError,
    Unavailable,
    UnsupportedMedia,
)

_log = logging.getLogger(__name__)
# Media types of a JSON body; "" is a request without Content-Type. Before a web page's script sends
# JSON to another site, the browser asks that site (a CORS preflight).
_JSON = ("application/json", "")
_BODIED = ("POST", "PATCH")
# What curl calls a body if it is not told: Ollama's own examples leave it so.
_FORM = "application/x-www-form-urlencoded"
_BODIES = {"/v1/cache/import": ("application/x-tar", "application/octet-stream", "")}
_FOREIGN_HOST = (
    "this Host is not allowed: server.allowed_hosts must have the name by which clients call this "
    "server, as in --set server.allowed_hosts=localhost,127.0.0.1,NAME"
)
# Of two of these one would have to be chosen, and a proxy may have chosen the other.
_ONCE = ("host", "origin", "authorization", "x-api-key", TOKEN_HEADER, "content-type")
_OPEN_PATHS = ("/health/live", "/health/ready", "/health", "/")
_OPEN_BELOW = "/web/"


class AccessGuard:
    """Refuses a request by headers that it has twice, its Host and Origin (against DNS rebinding),
    its API key, or the media type of its body. A request that is cancelled by the server's
    shutdown before its response has begun gets Unavailable as its response."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context
        self._hosts = frozenset(context.allowed_hosts)
        self._origins = frozenset(context.cors_origins)
        # This machine's own names are allowed only with API keys: a page that rebinds DNS to such a
        # name has no key.
        self._own_names = context.own_names if context.api_keys else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = await self._problem(scope, Headers(scope=scope))
            if problem is not None:
                await response(problem, scope["path"])(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            left()
            _log.debug("a client left before its answer was complete")
        except asyncio.CancelledError:  # the time for running answers is over; see HttpServer
            if current().status:
                raise
            ending = Unavailable("the server is shutting down")
            await response(ending, scope["path"])(scope, receive, send)

    async def _problem(self, scope: Scope, headers: Headers) -> OmlxError | None:
        if twice := [name for name in _ONCE if len(headers.getlist(name)) > 1]:
            return BadRequest(f"the header {twice[0]} may be sent once only")
        if not await self._is_called_rightly(scope, headers):
            return Forbidden(_FOREIGN_HOST)
        if not await self._is_welcome(headers.get("origin", "")):
            return Forbidden("this Origin is not allowed; see server.cors_origins")
        if not (_is_open(scope["path"]) or is_authorized(self._context, headers)):
            return NotAuthorized("a valid API key is needed: Authorization: Bearer KEY")
        if scope["method"] in _BODIED:
            wanted = _media_types(scope["path"], headers)
            if _media_type(headers) not in wanted:
                return UnsupportedMedia(f"send the body as {wanted[0]}")
        return None

    async def _is_called_rightly(self, scope: Scope, headers: Headers) -> bool:
        """Whether the Host header is allowed. A request over a Unix socket always is: DNS can't
        point there."""
        if not self._hosts or came_by_unix_socket(scope):
            return True
        return await self._is_known(host_of(headers.get("host", "")))

    async def _is_welcome(self, origin: str) -> bool:
        """Whether a page of this origin may send requests. A request without an Origin may: a
        browser leaves it out only where another site's page can't send a body or read the answer.
        """
        if not origin or not self._hosts or self._origins & {origin.lower(), "*"}:
            return True
        return await self._is_known(host_of(origin.partition("://")[2]))

    async def _is_known(self, host: str) -> bool:
        """Whether `host` is in `server.allowed_hosts`, or, where API keys are needed, one of this
        machine's own names."""
        if host in self._hosts:
            return True
        return self._own_names is not None and await self._own_names.has(host)


def _is_open(path: str) -> bool:
    """Whether no API key is needed: for health, the page, and the page's own files."""
    return path in _OPEN_PATHS or path.startswith(_OPEN_BELOW)


def is_authorized(context: ApiContext, headers: Headers) -> bool:
    """Whether a request carries a valid API key or the admin token, or the server has no API keys.
    All keys are compared in constant time, whichever one matches."""
    if not context.api_keys:
        return True
    given = key_of(headers).encode()
    matches = [hmac.compare_digest(given, key.encode()) for key in context.api_keys]
    return any(matches) or context.admin.admits(headers)


def key_of(headers: Headers) -> str:
    """The API key that a request carries, valid or not; "" where it carries none."""
    token = bearer_of(headers)
    return headers.get("x-api-key", "") if token is None else token


def _media_types(path: str, headers: Headers) -> tuple[str, ...]:
    """The media types that a body for `path` may have. Ollama's routes take that of curl, unless
    the request comes from a web page."""
    wanted = _BODIES.get(path, _JSON)
    is_of_page = "origin" in headers or "sec-fetch-site" in headers
    return (*wanted, _FORM) if path.startswith("/api/") and not is_of_page else wanted


def _media_type(headers: Headers) -> str:
    """The media type of the body, in lower case and without parameters; "" where none is named."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
