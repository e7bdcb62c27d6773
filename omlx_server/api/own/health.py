"""The health routes. They answer 200 or 503.

/health/live    503: the engine's thread is stuck, restart the process
/health/ready   200: the server takes requests, and every rank of its cluster computes
/health         as /health/ready

Models and load are shown only with an API key or the admin token, if the server has API keys.
"""

import asyncio
from dataclasses import asdict
from typing import cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server import __version__, clock
from omlx_server.api.access.guard import is_authorized
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import Bytes, Operation
from omlx_server.api.http.host import is_from_here
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.static_files import INDEX, WebFiles, file_response, wants_page
from omlx_server.api.metric_helpers import label_of
from omlx_server.api.metrics.engine import memory_report_of
from omlx_server.api.models.served_model import role_of
from omlx_server.api.own import answers
from omlx_server.api.own.degraded import FOR_OTHERS
from omlx_server.engine.messages import EngineState, Status

router = APIRouter()

_HEALTH = Operation("Server", answers.Health, unhealthy=answers.Health, is_open=True).extra
_PAGE = Bytes(("text/html",), "The page.") if WebFiles().find(INDEX) else None


@router.get("/health/live", openapi_extra=_HEALTH)
async def live(request: Request) -> Response:
    """Return whether the process should go on living."""
    vitals = context_of(request).models.vitals
    return _health_response(request, ok=vitals.alive(clock.now()))


@router.get("/health/ready", openapi_extra=_HEALTH)
@router.get("/health", openapi_extra=_HEALTH)
async def ready(request: Request) -> Response:
    """Return whether requests are taken now."""
    models = context_of(request).models
    has_failed = any(status.state is EngineState.FAILED for _, status in models.engines())
    is_alive = models.vitals.alive(clock.now())
    all_ranks_compute = all(rank["status"] == "here" for rank in context_of(request).ranks())
    is_ready = models.started and is_alive and not has_failed and all_ranks_compute
    return _health_response(request, ok=is_ready)


@router.get("/version", openapi_extra=Operation("Server", answers.Version).extra)
async def version() -> Response:
    """Return the version of the server."""
    return JsonResponse(answers.Version(version=__version__))


@router.get("/", openapi_extra=Operation("Server", answers.Index, page=_PAGE, is_open=True).extra)
async def index(request: Request) -> Response:
    """Return the page for browsers, JSON for others."""
    web = context_of(request).web
    if web is not None and wants_page(request.headers):
        page = await asyncio.to_thread(web.find, INDEX)
        if page is not None:
            response = file_response(page, request.headers)
            response.headers["Vary"] = "Accept, Accept-Encoding"
            return response
    answer = answers.Index(server="omlx_server", version=__version__, api="/v1")
    return JsonResponse(answer, headers={"Vary": "Accept"})


def _health_response(request: Request, *, ok: bool) -> Response:
    context = context_of(request)
    models = context.models
    memory = memory_report_of(models, context.responses, context.traffic)
    body: answers.Health = {"status": "ok" if ok else "unavailable"}
    if is_authorized(context, request.headers):
        body["engines"] = [_engine_health(*engine) for engine in models.engines()]
        body["loaded"] = [
            {"model": label_of(model.names[0]), "kind": role_of(model).kind}
            for model in models.pool.loaded()
        ]
        body["memory"] = None
        if memory is not None:
            figures = asdict(memory.ledger) | {
                "resident": memory.resident,
                "pressure": memory.pressure,
                "drift": memory.drift,
            }
            body["memory"] = cast(answers.MemoryHealth, figures)
        body["device_errors"] = dict(models.vitals.device_errors)
        body["config"] = _config_health(request)
        if ranks := context.ranks():
            body["cluster"] = ranks
    return JsonResponse(body, 200 if ok else 503)


def _config_health(request: Request) -> answers.ConfigHealth:
    """Return the state of the config. Only requests from this machine get a problem's text."""
    state = context_of(request).config
    problem = state.problem if is_from_here(request.scope) else FOR_OTHERS
    return {
        "problem": problem if state.problem else None,
        "needs_restart": list(state.needs_restart),
    }


def _engine_health(model: str, status: Status) -> answers.EngineHealth:
    chunks = status.chunks
    return {
        "model": model,
        "state": status.state.value,
        "running": status.load.running,
        "prefilling": status.load.prefilling,
        "waiting": status.load.waiting,
        "chunk_tokens": chunks.beside if chunks else None,
        "chunk_tokens_alone": chunks.alone if chunks else None,
        "problem": status.problem or None,
    }
