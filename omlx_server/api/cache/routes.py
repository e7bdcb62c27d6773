"""The routes for the prefix cache.

A pin is a prefix that neither tier evicts. An archive is a file with the cached blocks of one
prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from omlx_server.api.access.tenant import SALT, client_of, salt_of, salt_to_reset
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.turn import read_and_encode
from omlx_server.api.context import body_of, context_of, in_time
from omlx_server.api.description.operation import (
    MODEL,
    STATE,
    Bytes,
    Operation,
    Query,
    ResponseHeader,
)
from omlx_server.api.http import json_body
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.own import answers
from omlx_server.core.adapters import salted
from omlx_server.core.blocks.pins import PinReport, Unpinned
from omlx_server.errors import BadRequest, PinNotFound

router = APIRouter()

_TAR = "application/x-tar"
_PROBE = Operation("Cache", answers.CacheProbe, body=ChatRequest, may_fail=MODEL + STATE).extra
_RESET = Operation("Cache", answers.CacheReset, query=(SALT,), may_fail=STATE).extra
_EXPORT = Operation(
    "Cache",
    Bytes((_TAR,), "An archive."),
    body=ChatRequest,
    headers=(
        ResponseHeader("X-Omlx-Prompt-Tokens", "Tokens of the prompt.", always=True),
        ResponseHeader("X-Omlx-Cached-Tokens", "Of which so many are in the archive.", always=True),
    ),
    may_fail=MODEL + STATE,
).extra
_IMPORT = Operation(
    "Cache",
    answers.CacheImport,
    body=Bytes((_TAR, "application/octet-stream"), "An archive."),
    query=(Query("model", str, "Where several models are served: for which."), SALT),
    may_fail=MODEL + STATE,
).extra
_PIN = Operation("Cache", answers.PinAnswer, body=ChatRequest, may_fail=MODEL + STATE).extra
_PINS = Operation("Cache", answers.PinList, query=(SALT,), may_fail=STATE).extra
_UNPIN = Operation("Cache", answers.DeletedPin, query=(SALT,), may_fail=MODEL + STATE).extra


@dataclass(frozen=True, slots=True)
class RequestPrefix:
    """A prompt with the salt of its blocks. `tenant_salt` is that without the adapter."""

    name: str
    model: ServedModel
    tokens: tuple[int, ...]
    salt: bytes
    tenant_salt: bytes


async def prefix_of(request: Request) -> RequestPrefix:
    """Return the prompt in the body of `request`. Raises as a chat completion."""
    chat = await body_of(request, ChatRequest)
    model = await context_of(request).models.find(
        chat.model, adapter=chat.adapter, preset=chat.preset
    )
    tokens = (await in_time(request, read_and_encode(chat, model, request))).tokens
    tenant_salt = salt_of(request, chat.cache_salt)
    block_salt = salted(tenant_salt, model.adapter)
    return RequestPrefix(chat.model, model, tuple(tokens), block_salt, tenant_salt)


@router.post("/v1/cache/probe", openapi_extra=_PROBE)
async def probe(request: Request) -> Response:
    """The blocks of a conversation's prompt that are cached. Takes the body of a chat
    completion."""
    prefix = await prefix_of(request)
    tokens, salt = prefix.tokens, prefix.salt
    report = await prefix.model.engine.probe(tokens, salt)
    hot = [answers.CachedBlock(start=start, stop=stop, tier="hot") for start, stop in report.blocks]
    cold = [answers.CachedBlock(start=start, stop=stop, tier="cold") for start, stop in report.cold]
    answer: answers.CacheProbe = {
        "model": prefix.name,
        "prompt_tokens": report.tokens,
        "cached_tokens": report.cached,
        "known_tokens": report.known,
        "blocks": hot + cold,
        "checkpoints": list(report.checkpoints),
    }
    return JsonResponse(answer)


@router.post("/v1/cache/reset", openapi_extra=_RESET)
@router.post("/reset_prefix_cache", openapi_extra=_RESET)  # vLLM's name for it
async def reset(request: Request, cache_salt: str | None = None) -> Response:
    """Drop every block that no request is using, and what is stored of models that are not loaded.
    Tells what was in memory before. Where there are several API keys, a key drops its own blocks:
    those without a `cache_salt`, or with the one given. The admin token drops all."""
    context = context_of(request)
    tenant_salt = salt_to_reset(request, cache_salt)
    # None stands for all salts.
    salts = [None] if tenant_salt is None else await context.models.salts(tenant_salt)
    dropped = [await _reset_model(model, salts) for model in context.models.loaded()]
    for salt in salts:
        await context.models.caches.clear_cold(salt)
    return JsonResponse(answers.CacheReset(dropped=dropped))


async def _reset_model(model: ServedModel, salts: Sequence[bytes | None]) -> answers.DroppedCache:
    dropped = [await model.reset_cache(salt) for salt in salts]
    return {
        "bytes": sum(one.nbytes for one in dropped),
        "blocks": sum(one.blocks for one in dropped),
        "checkpoints": sum(one.checkpoints for one in dropped),
    }


@router.post("/v1/cache/export", openapi_extra=_EXPORT)
async def export(request: Request) -> Response:
    """The cached blocks of a conversation's prompt as an archive, for another server with the same
    model. Takes the body of a chat completion."""
    prefix = await prefix_of(request)
    model = prefix.model
    exported = await model.archives.export(prefix.tokens, prefix.salt, model.adapter)
    return StreamingResponse(
        (bytes(part) for part in exported.parts),
        media_type=_TAR,
        headers={
            "Content-Disposition": 'attachment; filename="prefix.tar"',
            "X-Omlx-Prompt-Tokens": str(len(prefix.tokens)),
            "X-Omlx-Cached-Tokens": str(exported.cached),
        },
    )


@router.post("/v1/cache/import", openapi_extra=_IMPORT)
async def import_(
    request: Request, model: str | None = None, cache_salt: str | None = None
) -> Response:
    """Take in an archive, the body, for `model`, which may be left out where there is only one."""
    served = await _model_for_import(request, model)
    salt = salted(salt_of(request, cache_salt), served.adapter)
    with context_of(request).traffic.imports.begin(client_of(request)) as body:
        data = await json_body.read_bytes(request, served.archives.max_bytes, body)
        imported = await served.archives.take_in(data, salt, served.adapter)
    answer: answers.CacheImport = {
        "model": served.names[0],
        "tokens": imported.tokens,
        "blocks": imported.blocks,
        "states": imported.checkpoints,
        "added": imported.added,
    }
    return JsonResponse(answer)


async def _model_for_import(request: Request, name: str | None) -> ServedModel:
    models = context_of(request).models
    if name is None and len(models.loaded()) > 1:
        raise BadRequest("several models are loaded: say which, as ?model=NAME", param="model")
    return await models.find(name)


@router.post("/v1/cache/pin", openapi_extra=_PIN)
async def pin(request: Request) -> Response:
    """Keep the blocks of a conversation's prompt, from now on or from when they are computed. Takes
    the body of a chat completion."""
    prefix = await prefix_of(request)
    tokens, salt, name = prefix.tokens, prefix.salt, prefix.model.full_name
    new_pin = await prefix.model.engine.pin(tokens, salt, name)
    if new_pin is None:
        raise BadRequest(
            "there is nothing to pin: the prompt is shorter than one block, or the cache is off"
        )
    report = await context_of(request).models.caches.save_pin(new_pin, prefix.tenant_salt)
    return JsonResponse(_pin_shape(report))


@router.get("/v1/cache/pins", openapi_extra=_PINS)
async def pins(request: Request, cache_salt: str | None = None) -> Response:
    """All pins, the oldest first, of models that are not loaded as well."""
    reports = await context_of(request).models.caches.pins(salt_of(request, cache_salt))
    data = [_pin_shape(report) for report in sorted(reports, key=lambda r: r.pin.created)]
    return JsonResponse(answers.PinList(object="list", data=data))


@router.delete("/v1/cache/pins/{id}", openapi_extra=_UNPIN)
async def unpin(request: Request, id: str, cache_salt: str | None = None) -> Response:
    """End a pin. What it held goes when there is no room for it."""
    outcome = await context_of(request).models.caches.unpin(id, salt_of(request, cache_salt))
    if outcome is Unpinned.UNKNOWN:
        raise PinNotFound("there is no such pin; GET /v1/cache/pins lists them")
    stored = outcome is Unpinned.STORED
    return JsonResponse(answers.DeletedPin(id=id, object="cache.pin", deleted=True, stored=stored))


def _pin_shape(report: PinReport) -> answers.PinAnswer:
    return {
        "id": report.pin.id,
        "object": "cache.pin",
        "model": report.pin.model,
        "created": int(report.pin.created),
        "tokens": report.pin.tokens,
        "hot_tokens": report.hot_tokens,
        "cold_tokens": report.cold_tokens,
    }
