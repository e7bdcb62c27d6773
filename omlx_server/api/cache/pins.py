"""Pins: prefixes that neither tier evicts. Each API key sees and ends its own; keys that share what
is cached share their pins."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.access.tenant import SALT, salt_of
from omlx_server.api.cache import prefix
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, STATE, described
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.own.answers import DeletedPin, Pin, PinList
from omlx_server.core.blocks.pins import PinReport, Unpinned
from omlx_server.errors import BadRequest, PinNotFound

router = APIRouter()

_PIN = described("Cache", Pin, body=ChatRequest, may_fail=MODEL + STATE)
_PINS = described("Cache", PinList, query=(SALT,), may_fail=STATE)
_UNPIN = described("Cache", DeletedPin, query=(SALT,), may_fail=MODEL + STATE)


@router.post("/v1/cache/pin", openapi_extra=_PIN)
async def pin(request: Request) -> Response:
    """Keep the blocks of a conversation's prompt, from now on or from when they are computed. Takes
    the body of a chat completion."""
    asked = await prefix.read(request)
    tokens, salt, name = asked.tokens, asked.salt, asked.model.names[0]
    made = await asked.model.engine.ask(lambda lane: lane.pin(tokens, salt, name))
    if made is None:
        raise BadRequest(
            "there is nothing to pin: the prompt is shorter than one block, or the cache is off"
        )
    return JsonResponse(_shape(await context_of(request).models.kept.pinned(made)))


@router.get("/v1/cache/pins", openapi_extra=_PINS)
async def pins(request: Request, cache_salt: str | None = None) -> Response:
    """All pins, the oldest first, of models that are not loaded as well."""
    reports = await context_of(request).models.kept.pins(salt_of(request, cache_salt))
    return JsonResponse(PinList(object="list", data=[_shape(report) for report in reports]))


@router.delete("/v1/cache/pins/{id}", openapi_extra=_UNPIN)
async def unpin(request: Request, id: str, cache_salt: str | None = None) -> Response:
    """End a pin. What it held goes when there is no room for it."""
    salt = salt_of(request, cache_salt)
    outcome = await context_of(request).models.kept.unpin(id, salt)
    if outcome is Unpinned.UNKNOWN:
        raise PinNotFound("there is no such pin; GET /v1/cache/pins lists them")
    stored = outcome is Unpinned.STORED
    return JsonResponse(DeletedPin(id=id, object="cache.pin", deleted=True, stored=stored))


def _shape(report: PinReport) -> Pin:
    return {
        "id": report.pin.id,
        "object": "cache.pin",
        "model": report.pin.model,
        "created": int(report.pin.created),
        "tokens": report.pin.tokens,
        "hot_tokens": report.hot_tokens,
        "cold_tokens": report.cold_tokens,
    }
