"""Is it alive, is it ready: for service managers, load balancers and people.

/health/live    200 while the engine turns (a stuck step turns it red); restart it otherwise
/health/ready   200 while requests are taken
/health         the same as ready
"""

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server import __version__
from omlx_server.api.answers import EngineHealth, Health, Index, MemoryHealth, Version
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import described
from omlx_server.api.json import JsonResponse
from omlx_server.core.memory.ledger import MemoryReport
from omlx_server.engine.messages import State, Status

router = APIRouter()

_HEALTH = described("Server", Health, sick=Health, is_open=True)


@router.get("/health/live", openapi_extra=_HEALTH)
async def live(request: Request) -> Response:
    """Whether the process should go on living."""
    statuses = _statuses(request)
    alive = all(status.alive(time.monotonic()) for status in statuses)
    return _report(statuses, ok=alive)


@router.get("/health/ready", openapi_extra=_HEALTH)
@router.get("/health", openapi_extra=_HEALTH)
async def ready(request: Request) -> Response:
    """Whether requests are taken now."""
    statuses = _statuses(request)
    return _report(statuses, ok=all(status.state is State.READY for status in statuses))


@router.get("/version", openapi_extra=described("Server", Version))
async def version() -> Response:
    """The version of the server."""
    return JsonResponse({"version": __version__})


@router.api_route("/", methods=["GET", "HEAD"], openapi_extra=described("Server", Index))
async def index() -> Response:
    """Something kind for whoever opens the address in a browser."""
    return JsonResponse({"server": "omlx_server", "version": __version__, "api": "/v1"})


def _statuses(request: Request) -> list[Status]:
    return [engine.status for engine in context_of(request).models.engines()]


def _report(statuses: list[Status], *, ok: bool) -> Response:
    body = {
        "status": "ok" if ok else "unavailable",
        "engines": [_engine(status) for status in statuses],
    }
    return JsonResponse(body, 200 if ok else 503)


def _engine(status: Status) -> EngineHealth:
    return {
        "state": status.state.value,
        "running": status.load.running,
        "prefilling": status.load.prefilling,
        "waiting": status.load.waiting,
        "problem": status.problem or None,
        "memory": None if status.memory is None else _memory(status.memory),
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
        "drift": report.drift,
    }
