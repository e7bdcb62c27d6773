"""GET /progress/{id}: where one request at work is, for the client that sent it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.activity.answers import Progress
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.core.clients import CLIENT

router = APIRouter()


@router.get("/progress/{id}", openapi_extra=Operation("Server", Progress).extra)
async def progress(request: Request, id: str) -> Response:
    """Return how far the request is that this key sent with this id as its X-Request-Id."""
    return JsonResponse(await context_of(request).activity.progress(id, CLIENT.get()))
