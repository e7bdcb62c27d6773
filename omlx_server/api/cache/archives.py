"""Conversations as bytes: what is known of a prompt goes out as one file, and comes in again."""

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from omlx_server.api.access.tenant import SALT, salt_of
from omlx_server.api.cache import prefix
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, STATE, Bytes, Header, Query, described
from omlx_server.api.http import body
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served import ServedModel
from omlx_server.api.own.answers import CacheImport
from omlx_server.errors import BadRequest

router = APIRouter()

_TAR = "application/x-tar"
_EXPORT = described(
    "Cache",
    Bytes((_TAR,), "An archive."),
    body=ChatRequest,
    headers=(
        Header("X-Omlx-Prompt-Tokens", "Tokens of the prompt.", always=True),
        Header("X-Omlx-Cached-Tokens", "Of which so many are in the archive.", always=True),
    ),
    may_fail=MODEL + STATE,
)
_IMPORT = described(
    "Cache",
    CacheImport,
    body=Bytes((_TAR, "application/octet-stream"), "An archive."),
    query=(Query("model", str, "Where several models are served: for which."), SALT),
    may_fail=MODEL + STATE,
)


@router.post("/v1/cache/export", openapi_extra=_EXPORT)
async def export(request: Request) -> Response:
    """The cached blocks of a conversation's prompt as an archive, for another server with the same
    model. Takes the body of a chat completion."""
    asked = await prefix.read(request)
    exported = await asked.model.archives.export(asked.tokens, asked.salt)
    return StreamingResponse(
        (bytes(part) for part in exported.parts),
        media_type=_TAR,
        headers={
            "Content-Disposition": 'attachment; filename="prefix.tar"',
            "X-Omlx-Prompt-Tokens": str(len(asked.tokens)),
            "X-Omlx-Cached-Tokens": str(exported.cached),
        },
    )


@router.post("/v1/cache/import", openapi_extra=_IMPORT)
async def import_(
    request: Request, model: str | None = None, cache_salt: str | None = None
) -> Response:
    """Take in an archive, the body, for `model`, which may be left out where there is only one."""
    served = await _model(request, model)
    data = await body.read_bytes(request, served.archives.max_bytes)
    taken = await served.archives.take_in(data, salt_of(request, cache_salt))
    answer: CacheImport = {
        "model": served.names[0],
        "tokens": taken.tokens,
        "blocks": taken.blocks,
        "states": taken.states,
        "added": taken.added,
    }
    return JsonResponse(answer)


async def _model(request: Request, name: str | None) -> ServedModel:
    models = context_of(request).models
    if name is not None:
        return await models.find(name)
    if len(models.loaded()) > 1:
        raise BadRequest("several models are loaded: say which, as ?model=NAME", param="model")
    return await models.find_or_only(None)
