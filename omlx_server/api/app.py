"""The ASGI application: routes, the guard before them, the error envelope around them."""

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from omlx_server.api import (
    cache,
    cache_archives,
    cache_pins,
    errors,
    health,
    metrics,
    rerank,
    tokenize,
)
from omlx_server.api.anthropic import routes as messages
from omlx_server.api.context import ApiContext
from omlx_server.api.description import routes as description
from omlx_server.api.description.document import document
from omlx_server.api.exchange import REQUEST_ID, Exchanges
from omlx_server.api.guard import Guard
from omlx_server.api.openai import chat, completions, embeddings, models
from omlx_server.api.openai.answers import CACHE_HEADERS
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
    cache_archives,
    cache_pins,
)
_ROUTES = tuple(
    route for part in _PARTS for route in part.router.routes if isinstance(route, APIRoute)
)


class App(FastAPI):
    """Described by our own document: FastAPI knows nothing of bodies that routes read themselves,
    nor of answers that they make by hand."""

    def openapi(self) -> dict[str, Any]:
        """Made once."""
        if self.openapi_schema is None:
            keys_needed = bool(self.state.context.api_keys)
            self.openapi_schema = document(_ROUTES, keys_needed=keys_needed)
        return self.openapi_schema

    def build_middleware_stack(self) -> ASGIApp:
        """Outside of all that starlette itself puts outside, which answers what nobody foresaw."""
        return Exchanges(super().build_middleware_stack(), self.state.context.tracer)


def create_app(context: ApiContext) -> App:
    """Everything under one roof. The interactive docs are off: their page loads from a CDN."""
    app = App(
        openapi_url=None,
        redirect_slashes=False,  # a redirect has no envelope, and most clients do not repeat a POST
    )
    app.state.context = context
    app.add_middleware(Guard, context=context)
    if context.cors_origins:
        # Before the guard: a browser asks for leave without a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=context.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, *(header.name for header in CACHE_HEADERS)],
        )
    errors.install(app, _ROUTES)
    for part in _PARTS:
        app.include_router(part.router)
    return app
