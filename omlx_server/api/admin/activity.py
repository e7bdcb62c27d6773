"""The admin routes about the server's activity."""

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from omlx_server.api.activity.answers import LiveState, MemoryTold, Requests
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import Events, Operation, Query
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.sse import EventStream
from omlx_server.errors import BadRequest

router = APIRouter(dependencies=[Depends(require_admin)])

_LIVE = Operation(
    "Admin",
    None,
    events=Events(LiveState, named=True),
    query=(Query("events", int, "End after so many events. Without it the stream does not end."),),
    may_fail=(429, 503),
).extra


@router.get("/admin/memory", openapi_extra=Operation("Admin", MemoryTold).extra)
async def memory(request: Request) -> Response:
    """The use of the memory in the last ten minutes."""
    return JsonResponse(context_of(request).activity.memory.history())


@router.get("/admin/requests", openapi_extra=Operation("Admin", Requests).extra)
async def requests(request: Request) -> Response:
    """The requests at work and the last ones done, without their texts."""
    return JsonResponse(await context_of(request).activity.requests())


@router.get("/admin/live", openapi_extra=_LIVE)
async def live(request: Request, events: str | None = None) -> Response:
    """The state of the server, once a second, as a stream of server-sent events."""
    if events is not None and not (events.isascii() and events.isdigit() and len(events) < 10):
        raise BadRequest("events must be a number", param="events")
    context = context_of(request)
    most = None if events is None else int(events)
    return EventStream(context.activity.live.events(most), context.keepalive_seconds)
