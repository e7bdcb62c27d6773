"""The prefix cache over HTTP: what is known of a prompt, and starting afresh."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.access.tenant import SALT, salt_to_reset
from omlx_server.api.cache import prefix
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, STATE, described
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.own.answers import CachedBlock, CacheProbe, CacheReset, DroppedCache
from omlx_server.core.prefix_cache.report import Dropped

router = APIRouter()

_PROBE = described("Cache", CacheProbe, body=ChatRequest, may_fail=MODEL + STATE)
_RESET = described("Cache", CacheReset, query=(SALT,), may_fail=STATE)


@router.post("/v1/cache/probe", openapi_extra=_PROBE)
async def probe(request: Request) -> Response:
    """Which blocks of a conversation's prompt are there. Takes the body of a chat completion."""
    asked = await prefix.read(request)
    tokens, salt = asked.tokens, asked.salt
    found = await asked.model.engine.ask(lambda lane: lane.cache.probe(tokens, salt))
    hot = [CachedBlock(start=start, stop=stop, tier="hot") for start, stop in found.blocks]
    cold = [CachedBlock(start=start, stop=stop, tier="cold") for start, stop in found.cold]
    answer: CacheProbe = {
        "model": asked.name,
        "prompt_tokens": found.tokens,
        "cached_tokens": found.cached,
        "known_tokens": found.known,
        "blocks": hot + cold,
        "checkpoints": list(found.checkpoints),
    }
    return JsonResponse(answer)


@router.post("/v1/cache/reset", openapi_extra=_RESET)
@router.post("/reset_prefix_cache", openapi_extra=_RESET)  # vLLM's name for it
async def reset(request: Request, cache_salt: str | None = None) -> Response:
    """Drop every block that no request is using, and what is stored of models that are not loaded.
    Tells what was in memory before. Where there are several API keys, a key drops its own blocks:
    those without a `cache_salt`, or with the one given. The admin token drops all."""
    context = context_of(request)
    salt = salt_to_reset(request, cache_salt)
    models = context.models.loaded()
    dropped = [await model.engine.ask(lambda lane: lane.reset_cache(salt)) for model in models]
    await context.models.kept.clear_cold(salt)
    return JsonResponse(CacheReset(dropped=[_shape(one) for one in dropped]))


def _shape(dropped: Dropped) -> DroppedCache:
    return {
        "bytes": dropped.nbytes,
        "blocks": dropped.blocks,
        "checkpoints": dropped.checkpoints,
    }
