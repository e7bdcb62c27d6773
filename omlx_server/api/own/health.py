"""Is it alive, is it ready: for service managers, load balancers and people.

/health/live    200 while the engine turns, or is at work on a long step; restart it otherwise
/health/ready   200 while requests are taken
/health         the same as ready

Whoever asks is told the status. What is loaded and how much is going on is told to who has a key,
or to all where there are no keys.
"""

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server import __version__
from omlx_server.api.access.guard import is_authorized
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import described
from omlx_server.api.http.host import is_from_here
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.metrics.account import account_of
from omlx_server.api.own.answers import (
    ConfigHealth,
    EngineHealth,
    Health,
    Index,
    MemoryHealth,
    Version,
)
from omlx_server.api.own.degraded import FOR_OTHERS
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.engine.messages import State, Status

router = APIRouter()

_HEALTH = described("Server", Health, sick=Health, is_open=True)


@router.get("/health/live", openapi_extra=_HEALTH)
async def live(request: Request) -> Response:
    """Whether the process should go on living."""
    return _report(request, ok=context_of(request).models.vitals.alive(time.monotonic()))


@router.get("/health/ready", openapi_extra=_HEALTH)
@router.get("/health", openapi_extra=_HEALTH)
async def ready(request: Request) -> Response:
    """Whether requests are taken now."""
    models = context_of(request).models
    failed = any(status.state is State.FAILED for status in models.statuses())
    alive = models.vitals.alive(time.monotonic())
    return _report(request, ok=models.started and alive and not failed)


@router.get("/version", openapi_extra=described("Server", Version))
async def version() -> Response:
    """The version of the server."""
    return JsonResponse(Version(version=__version__))


@router.api_route("/", methods=["GET", "HEAD"], openapi_extra=described("Server", Index))
async def index() -> Response:
    """Something kind for whoever opens the address in a browser."""
    return JsonResponse(Index(server="omlx_server", version=__version__, api="/v1"))


def _report(request: Request, *, ok: bool) -> Response:
    models = context_of(request).models
    memory = account_of(models, context_of(request).responses)
    body: Health = {"status": "ok" if ok else "unavailable"}
    if is_authorized(context_of(request), request.headers):
        body["engines"] = [_engine(*engine) for engine in models.engines()]
        body["memory"] = None if memory is None else _memory(memory)
        body["config"] = _config(request)
    return JsonResponse(body, 200 if ok else 503)


def _config(request: Request) -> ConfigHealth:
    """What is wrong names files and settings, so it is told on this machine alone. The settings
    that were right before it are in force: that is no reason not to be ready."""
    state = context_of(request).config
    told = state.problem if is_from_here(request.scope) else FOR_OTHERS
    return {
        "problem": told if state.problem else None,
        "needs_restart": list(state.needs_restart),
    }


def _engine(model: str, status: Status) -> EngineHealth:
    return {
        "model": model,
        "state": status.state.value,
        "running": status.load.running,
        "prefilling": status.load.prefilling,
        "waiting": status.load.waiting,
        "problem": status.problem or None,
    }


def _memory(report: MemoryReport) -> MemoryHealth:
    ledger = report.ledger
    return {
        "limit": ledger.limit,
        "weights": ledger.weights,
        "live": ledger.live,
        "blocks": ledger.blocks,
        "checkpoints": ledger.checkpoints,
        "pending": ledger.pending,
        "step": ledger.step,
        "pool": ledger.pool,
        "grammars": ledger.grammars,
        "responses": ledger.responses,
        "resident": report.resident,
        "drift": report.drift,
    }
