"""The way in: CORS and the guard, by the settings in force when a request comes.

A request sees one context from its beginning to its end, whatever changes meanwhile.
"""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from omlx_server.api.access.guard import Guard
from omlx_server.api.context import CONTEXT, ApiContext
from omlx_server.api.http.anthropic_errors import REQUEST_ID as ANTHROPIC_ID
from omlx_server.api.http.exchange import REQUEST_ID
from omlx_server.api.openai.answers import CACHE_HEADERS


class Entrance:
    """Before all routes. asyncio thread."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._context: ApiContext | None = None
        self._way: ASGIApp = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = scope["app"].state.context
        if context is not self._context:
            self._context, self._way = context, _way(self._app, context)
        scope[CONTEXT] = context
        await self._way(scope, receive, send)


def _way(app: ASGIApp, context: ApiContext) -> ASGIApp:
    guard = Guard(app, context)
    if not context.cors_origins:
        return guard
    # Before the guard: a browser asks for leave without a key.
    return CORSMiddleware(
        guard,
        allow_origins=context.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=[REQUEST_ID, ANTHROPIC_ID, *(header.name for header in CACHE_HEADERS)],
    )
