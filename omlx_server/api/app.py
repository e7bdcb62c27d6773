"""The ASGI application: routes, access guard, and error handlers."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx_server.api.access.guard import AccessGuard
from omlx_server.api.access.tenant import client_of
from omlx_server.api.admin import activity as admin_activity
from omlx_server.api.admin import cache as admin_cache
from omlx_server.api.admin import fetch as admin_fetch
from omlx_server.api.admin import models as admin_models
from omlx_server.api.admin import settings as admin_settings
from omlx_server.api.admin import sign_in as admin_sign_in
from omlx_server.api.anthropic import routes as messages
from omlx_server.api.cache import routes as cache
from omlx_server.api.chat.choices import CACHE_HEADERS
from omlx_server.api.context import CONTEXT, ApiContext
from omlx_server.api.description import document as description
from omlx_server.api.http import errors
from omlx_server.api.http.anthropic_errors import REQUEST_ID as ANTHROPIC_ID
from omlx_server.api.http.bodies import BODY
from omlx_server.api.http.exchange import REQUEST_ID, Exchanges, current_exchange
from omlx_server.api.metrics import metrics
from omlx_server.api.ollama import models as ollama_models
from omlx_server.api.ollama import pull as ollama_pull
from omlx_server.api.ollama import routes as ollama
from omlx_server.api.openai import chat, completions, embeddings, models
from omlx_server.api.own import health, progress, rerank, tokenize
from omlx_server.api.responses import routes as responses
from omlx_server.api.web import routes as web
from omlx_server.api.web import sign_in
from omlx_server.core.clients import CLIENT

_ROUTE_MODULES = (
    health,
    metrics,
    description,
    models,
    chat,
    completions,
    embeddings,
    responses,
    messages,
    rerank,
    tokenize,
    progress,
    cache,
)
_OLLAMA_MODULES = (ollama, ollama_models)
_ADMIN_MODULES = (
    admin_models,
    admin_activity,
    admin_cache,
    admin_settings,
    admin_fetch,
    admin_sign_in,
)


class App(FastAPI):
    """The application, with its own OpenAPI document: FastAPI can't see our bodies and answers."""

    def change(self, context: ApiContext) -> None:
        """Use `context` from the next request on; the routes stay the same."""
        self.state.context = context
        self.openapi_schema = None

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, made at the first call."""
        if self.openapi_schema is None:
            context = self.state.context
            keys_needed = bool(context.api_keys)
            self.openapi_schema = description.document(_routes(context), keys_needed=keys_needed)
        return self.openapi_schema

    def build_middleware_stack(self) -> ASGIApp:
        """Put `Exchanges` around Starlette's stack, so that a 500 is counted too."""
        context = self.state.context
        stack, count = super().build_middleware_stack(), context.metrics.count_request
        log = context.activity.recent
        return Exchanges(stack, context.tracer, _routes(context), count, log)


class Entrance:
    """Runs CORS and the access guard. A request keeps its context to the end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = scope[CONTEXT] = scope["app"].state.context
        client = client_of(Request(scope))
        CLIENT.set(client)
        current_exchange().client = client
        scope[BODY] = lambda: context.traffic.bodies.begin(client)
        guarded: ASGIApp = AccessGuard(self._app, context)
        if context.cors_origins:
            # CORS goes before the guard: a browser sends its preflight without an API key.
            guarded = CORSMiddleware(
                guarded,
                allow_origins=context.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=[REQUEST_ID, ANTHROPIC_ID, *(h.name for h in CACHE_HEADERS)],
            )
        if scope["method"] == "HEAD":
            scope, send = _as_get(scope, send)
        await guarded(scope, receive, send)


def _as_get(scope: Scope, send: Send) -> tuple[Scope, Send]:
    """Answer a HEAD request as a GET of which only the head is sent."""
    is_complete = False

    async def send_head(message: Message) -> None:
        nonlocal is_complete
        if message["type"] == "http.response.start":
            await send(message)
        elif not is_complete:
            is_complete = True
            await send({"type": "http.response.body"})

    return {**scope, "method": "GET"}, send_head


def create_app(context: ApiContext) -> App:
    """Return the application, without FastAPI's docs pages, which load scripts from a CDN."""
    app = App(
        openapi_url=None,
        redirect_slashes=False,  # a redirect has no envelope, and most clients do not repeat a POST
    )
    app.state.context = context
    app.add_middleware(Entrance)
    errors.install(app, _routes(context))
    for module in _route_modules(context):
        app.include_router(module.router)
    return app


def _route_modules(context: ApiContext) -> Iterator[ModuleType]:
    yield from (m for m in _ROUTE_MODULES if m is not metrics or context.shows_metrics)
    if context.web is not None:
        yield from (web, sign_in)
    if context.speaks_ollama:
        yield from _OLLAMA_MODULES
    if context.admin.enabled:
        yield from _ADMIN_MODULES
        if context.speaks_ollama:
            yield ollama_pull


def _routes(context: ApiContext) -> tuple[APIRoute, ...]:
    routes = (route for module in _route_modules(context) for route in module.router.routes)
    return tuple(route for route in routes if isinstance(route, APIRoute))
