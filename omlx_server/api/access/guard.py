"""The access check before any route. BaseHTTPMiddleware would hide a client's disconnect."""

import asyncio
import hmac
import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.context import ApiContext
from omlx_server.api.http.admin_access import TOKEN_HEADER, bearer_of
from omlx_server.api.http.client_gone import ClientGone
from omlx_server.api.http.errors import error_response
from omlx_server.api.http.exchange import current_exchange, note_client_left
from omlx_server.api.http.host import came_by_unix_socket, host_of
from omlx_server.errors import (
    BadRequest,
    Forbidden,
    NotAuthorized,
    OmlxError,
    Unavailable,
    UnsupportedMedia,
)

_log = logging.getLogger(__name__)
# Media types of a JSON body, "" for none. JSON to another site needs a CORS preflight of browsers.
_JSON_TYPES = ("application/json", "")
_METHODS_WITH_BODY = ("POST", "PATCH")
# curl's default, which Ollama's own examples use.
_FORM_TYPE = "application/x-www-form-urlencoded"
_MEDIA_TYPES_BY_PATH = {"/v1/cache/import": ("application/x-tar", "application/octet-stream", "")}
_FOREIGN_HOST = (
    "this Host is not allowed: server.allowed_hosts must have the name by which clients call this "
    "server, as in --set server.allowed_hosts=localhost,127.0.0.1,NAME"
)
# Headers that may not be repeated: a proxy could use the one and this server the other.
_UNREPEATABLE = ("host", "origin", "authorization", "x-api-key", TOKEN_HEADER, "content-type")
_OPEN_PATHS = ("/health/live", "/health/ready", "/health", "/", "/sign-in")
_OPEN_PREFIX = "/web/"


class AccessGuard:
    """Refuses requests by repeated headers, Host and Origin (against DNS rebinding), API key, or
    media type. A request that the shutdown cancels gets Unavailable."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context
        self._hosts = frozenset(context.allowed_hosts)
        self._origins = frozenset(context.cors_origins)
        # Own names are allowed only with API keys: a page that rebinds DNS to one has no key.
        self._own_names = context.own_names if context.api_keys else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = await self._find_problem(scope, Headers(scope=scope))
            if problem is not None:
                await error_response(problem, scope["path"])(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            note_client_left()
            _log.debug("a client left before its answer was complete")
        except asyncio.CancelledError:  # the time for running answers is over; see HttpServer
            if current_exchange().status:
                raise
            ending = Unavailable("the server is shutting down")
            await error_response(ending, scope["path"])(scope, receive, send)

    async def _find_problem(self, scope: Scope, headers: Headers) -> OmlxError | None:
        """Return the error for which a request is refused, if any."""
        for name in _UNREPEATABLE:
            if len(headers.getlist(name)) > 1:
                return BadRequest(f"the header {name} may be sent once only")
        if not await self._is_host_allowed(scope, headers):
            return Forbidden(_FOREIGN_HOST)
        if not await self._is_origin_allowed(headers.get("origin", "")):
            return Forbidden("this Origin is not allowed; see server.cors_origins")
        is_open = scope["path"] in _OPEN_PATHS or scope["path"].startswith(_OPEN_PREFIX)
        if not (is_open or is_authorized(self._context, headers)):
            return NotAuthorized("a valid API key is needed: Authorization: Bearer KEY")
        if scope["method"] in _METHODS_WITH_BODY:
            allowed = _media_types(scope["path"], headers)
            media = headers.get("content-type", "").partition(";")[0].strip().lower()
            if media not in allowed:
                return UnsupportedMedia(f"send the body as {allowed[0]}")
        return None

    async def _is_host_allowed(self, scope: Scope, headers: Headers) -> bool:
        """Return whether Host is allowed. DNS can't point to a Unix socket."""
        if not self._hosts or came_by_unix_socket(scope):
            return True
        return await self._is_own_host(host_of(headers.get("host", "")))

    async def _is_origin_allowed(self, origin: str) -> bool:
        """Return whether a page of this origin may send requests; browsers omit harmless ones."""
        if not origin or not self._hosts or self._origins & {origin.lower(), "*"}:
            return True
        return await self._is_own_host(host_of(origin.partition("://")[2]))

    async def _is_own_host(self, host: str) -> bool:
        if host in self._hosts:
            return True
        return self._own_names is not None and await self._own_names.has(host)


def is_authorized(context: ApiContext, headers: Headers) -> bool:
    """Return whether a request has a valid key, or needs none."""
    if not context.api_keys:
        return True
    api_key = key_of(headers).encode()
    # All keys are compared, in constant time.
    matches = [hmac.compare_digest(api_key, key.encode()) for key in context.api_keys]
    return any(matches) or context.admin.admits(headers)


def key_of(headers: Headers) -> str:
    """Return the API key of a request, valid or not, or ""."""
    token = bearer_of(headers)
    return headers.get("x-api-key", "") if token is None else token


def _media_types(path: str, headers: Headers) -> tuple[str, ...]:
    """Return the media types of a body for `path`."""
    types = _MEDIA_TYPES_BY_PATH.get(path, _JSON_TYPES)
    # A web page may not send curl's default: it would need no CORS preflight.
    is_of_page = "origin" in headers or "sec-fetch-site" in headers
    return (*types, _FORM_TYPE) if path.startswith("/api/") and not is_of_page else types
