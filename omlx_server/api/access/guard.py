"""Who may talk to the server: checked before any route, on every route but liveness.

Pure ASGI, because wrapping middleware would hide from the routes that a client has gone.
"""

import asyncio
import hmac
import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.context import ApiContext
from omlx_server.api.http.errors import response
from omlx_server.api.http.exchange import current
from omlx_server.api.http.host import came_by_unix_socket, host_of
from omlx_server.api.http.sse import ClientGone
from omlx_server.errors import (
    Forbidden,
    NotAuthorized,
    OmlxError,
    Unavailable,
    UnsupportedMedia,
)

_log = logging.getLogger(__name__)
# A page in a browser can send neither of these to another site without asking first.
_JSON = ("application/json", "")
_BODIES = {"/v1/cache/import": ("application/x-tar", "application/octet-stream", "")}
_FOREIGN_HOST = (
    "this Host is not allowed: server.allowed_hosts must have the name by which clients call this "
    "server, as in --set server.allowed_hosts=localhost,127.0.0.1,NAME"
)
_OPEN_PATHS = ("/health/live", "/health/ready", "/health")


class Guard:
    """Host and Origin against DNS rebinding, the API key, the media type of bodies. Who still waits
    at the server's end is told so."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context
        self._hosts = frozenset(context.allowed_hosts)
        self._origins = frozenset(context.cors_origins)
        # Who must have a key can't be harmed by a page that calls the machine by its name.
        self._own_names = context.own_names if context.api_keys else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = await self._problem(scope, Headers(scope=scope))
            if problem is not None:
                await response(problem)(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        except ClientGone:
            _log.debug("a client left before its answer was complete")
        except asyncio.CancelledError:  # the time for running answers is over; see HttpServer
            exchange = current()
            if exchange is None or exchange.status:
                raise
            await response(Unavailable("the server is shutting down"))(scope, receive, send)

    async def _problem(self, scope: Scope, headers: Headers) -> OmlxError | None:
        if not await self._is_called_rightly(scope, headers):
            return Forbidden(_FOREIGN_HOST)
        if not await self._is_welcome(headers.get("origin", "")):
            return Forbidden("this Origin is not allowed; see server.cors_origins")
        if scope["path"] not in _OPEN_PATHS and not is_authorized(self._context, headers):
            return NotAuthorized("a valid API key is needed: Authorization: Bearer KEY")
        if scope["method"] == "POST":
            kind, wanted = _media_type(headers), _BODIES.get(scope["path"], _JSON)
            if kind not in wanted:
                return UnsupportedMedia(f"send the body as {wanted[0]}")
        return None

    async def _is_called_rightly(self, scope: Scope, headers: Headers) -> bool:
        """By what Host. No page in a browser can have its name stand for a Unix socket."""
        if not self._hosts or came_by_unix_socket(scope):
            return True
        return await self._is_known(host_of(headers.get("host", "")))

    async def _is_welcome(self, origin: str) -> bool:
        """Whether a page of this origin may ask. No browser sends none for a page of a stranger."""
        if not origin or not self._hosts or self._origins & {origin.lower(), "*"}:
            return True
        return await self._is_known(host_of(origin.partition("://")[2]))

    async def _is_known(self, host: str) -> bool:
        """Whether it is in the settings, or a name of this machine where a key is needed."""
        if host in self._hosts:
            return True
        return self._own_names is not None and await self._own_names.has(host)


def is_authorized(context: ApiContext, headers: Headers) -> bool:
    """Constant time over all keys, one path for every kind of failure. The owner's commands have
    the token of the server, and need no key of a client beside it."""
    if not context.api_keys:
        return True
    given = key_of(headers).encode()
    matches = [hmac.compare_digest(given, key.encode()) for key in context.api_keys]
    return any(matches) or context.admin.admits(headers)


def key_of(headers: Headers) -> str:
    """The key that a request carries, whether it is a valid one or not."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _media_type(headers: Headers) -> str:
    """Browsers send text/plain and forms across origins without asking; JSON they ask for."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()
