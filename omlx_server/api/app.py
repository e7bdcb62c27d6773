"""The ASGI application: routes, the guard before them, the error envelope around them."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from omlx_server.api.admin import models as admin_models
from omlx_server.api.anthropic import routes as messages
from omlx_server.api.cache import archives, pins
from omlx_server.api.cache import routes as cache
from omlx_server.api.context import ApiContext
from omlx_server.api.description import routes as description
from omlx_server.api.description.document import document
from omlx_server.api.entrance import Entrance
from omlx_server.api.http import errors
from omlx_server.api.http.exchange import Exchanges
from omlx_server.api.metrics import metrics
from omlx_server.api.openai import chat, completions, embeddings, models
from omlx_server.api.own import health, rerank, tokenize
from omlx_server.api.responses import routes as responses

_PARTS = (
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
    cache,
    archives,
    pins,
)
_ADMIN_PARTS = (admin_models,)


class App(FastAPI):
    """Described by our own document: FastAPI knows nothing of bodies that routes read themselves,
    nor of answers that they make by hand."""

    def change(self, context: ApiContext) -> None:
        """Another one from the next request on, with the same routes."""
        self.state.context = context
        self.openapi_schema = None

    def openapi(self) -> dict[str, Any]:
        """Made once for each context."""
        if self.openapi_schema is None:
            context = self.state.context
            keys_needed = bool(context.api_keys)
            self.openapi_schema = document(_routes(context), keys_needed=keys_needed)
        return self.openapi_schema

    def build_middleware_stack(self) -> ASGIApp:
        """Outside of all that starlette itself puts outside, which answers what nobody foresaw."""
        context = self.state.context
        stack, count = super().build_middleware_stack(), context.metrics.answered
        return Exchanges(stack, context.tracer, _routes(context), count)


def create_app(context: ApiContext) -> App:
    """Everything under one roof. The interactive docs are off: their page loads from a CDN."""
    app = App(
        openapi_url=None,
        redirect_slashes=False,  # a redirect has no envelope, and most clients do not repeat a POST
    )
    app.state.context = context
    app.add_middleware(Entrance)
    errors.install(app, _routes(context))
    for part in _parts(context):
        app.include_router(part.router)
    return app


def _parts(context: ApiContext) -> Iterator[ModuleType]:
    """What is switched off is not there at all."""
    yield from (part for part in _PARTS if part is not metrics or context.shows_metrics)
    if context.admin.enabled:
        yield from _ADMIN_PARTS


def _routes(context: ApiContext) -> tuple[APIRoute, ...]:
    routes = (route for part in _parts(context) for route in part.router.routes)
    return tuple(route for route in routes if isinstance(route, APIRoute))
