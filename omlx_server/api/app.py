"""The ASGI application: routes, the guard before them, the error envelope around them."""

from fastapi import FastAPI

from omlx_server import __version__
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
from omlx_server.api.guard import Guard
from omlx_server.api.openai import chat, completions, embeddings, models
from omlx_server.api.responses import routes as responses


def create_app(context: ApiContext) -> FastAPI:
    """Everything under one roof. The interactive docs are off: their page loads from a CDN."""
    app = FastAPI(
        title="omlx_server",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect has no envelope, and most clients do not repeat a POST
    )
    app.state.context = context
    app.add_middleware(Guard, context=context)
    errors.install(app)
    for part in (
        health,
        metrics,
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
    ):
        app.include_router(part.router)
    return app
