"""The admin routes that show a prefix cache, and where a prompt leaves it."""

from collections.abc import Sequence

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from omlx_server import clock
from omlx_server.api.activity.activity import cache_counters
from omlx_server.api.admin.answers import CacheComparison, CacheMap, MapBlock
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.cache.routes import prefix_of
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, STATE, WORK, Operation, Query
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import ServedModel
from omlx_server.core.blocks.keys import BlockKey
from omlx_server.core.prefix_cache.block_map import MappedBlock, mapped
from omlx_server.core.prefix_cache.divergence import divergence
from omlx_server.errors import BadRequest, Conflict

router = APIRouter(dependencies=[Depends(require_admin)])

MOST_BLOCKS = 4000
MOST_PIECES = 20_000
MOST_STORED = 64
_MODEL_QUERY = Query("model", str, "Which model; it may be left out where one is loaded.")
_MAP = Operation("Admin", CacheMap, query=(_MODEL_QUERY,), may_fail=(*MODEL, 409, *WORK)).extra
_COMPARE = Operation("Admin", CacheComparison, body=ChatRequest, may_fail=MODEL + STATE).extra


@router.get("/admin/cache", openapi_extra=_MAP)
async def cache(request: Request, model: str | None = None) -> Response:
    """The blocks of a loaded model's prefix cache, those used last."""
    loaded_model = await _find_loaded(context_of(request).models, model)
    block_map = await loaded_model.engine.work(
        lambda instance: mapped(instance.cache, clock.now(), MOST_BLOCKS)
    )
    answer: CacheMap = {
        "model": loaded_model.names[0],
        "block_tokens": block_map.block_tokens,
        "counters": cache_counters(block_map.report),
        "blocks": [_describe_block(block) for block in block_map.blocks],
        "left_out": block_map.left_out,
    }
    return JsonResponse(answer)


@router.post("/admin/cache/compare", openapi_extra=_COMPARE)
async def compare(request: Request) -> Response:
    """Where a prompt leaves what is cached, token for token. Takes the body of a chat
    completion."""
    prefix = await prefix_of(request)
    tokens, salt = prefix.tokens, prefix.salt
    divergence_point = await prefix.model.engine.ask(
        lambda instance: divergence(instance.cache, tokens, salt, MOST_STORED)
    )
    start = first_shown_token(len(tokens), divergence_point.diverges_at)
    shown = tokens[start : start + MOST_PIECES]
    run = context_of(request).threads.run
    pieces = await run(_token_texts, prefix.model, shown)
    stored = await run(_token_texts, prefix.model, divergence_point.stored)
    answer: CacheComparison = {
        "model": prefix.name,
        "prompt_tokens": len(tokens),
        "cached_tokens": divergence_point.cached,
        "block_tokens": divergence_point.block_tokens,
        "blocks": [
            {"start": one.start, "stop": one.stop, "tier": one.tier.value if one.tier else None}
            for one in divergence_point.stretches
        ],
        "pieces": pieces,
        "pieces_start": start,
        "diverges_at": divergence_point.diverges_at,
        "stored": stored,
    }
    return JsonResponse(answer)


async def _find_loaded(models: ServedModels, name: str | None) -> ServedModel:
    """Return the loaded chat model of that name, or the only one. Raises ModelNotFound, Conflict
    where it is not loaded or does not chat, and BadRequest without a name for several."""
    loaded_models = models.loaded()
    if name is None:
        if len(loaded_models) > 1:
            raise BadRequest("several models are loaded: say which, as ?model=NAME", param="model")
        if not loaded_models:
            raise Conflict("no model that chats is loaded, so nothing is cached", param="model")
        return loaded_models[0]
    listing = await models.find_listing(name)
    loaded_model = next((model for model in loaded_models if model.names[0] in listing.names), None)
    if loaded_model is None:
        raise Conflict(f"{listing.names[0]} is not loaded, or does not chat", param="model")
    return loaded_model


def _describe_block(block: MappedBlock) -> MapBlock:
    return {
        "id": _short_id(block.key),
        "parent": None if block.parent is None else _short_id(block.parent),
        "start": block.start,
        "stop": block.stop,
        "bytes": block.nbytes,
        "tier": "cold" if block.is_cold else "hot",
        "pinned": block.pinned,
        "in_use": block.in_use,
        "idle_seconds": None if block.idle is None else round(block.idle, 1),
        "checkpoint": block.has_checkpoint,
    }


def _short_id(key: BlockKey) -> str:
    return key.hex()[:16]


def first_shown_token(tokens: int, diverges_at: int | None) -> int:
    """Return the first token to show, with the divergence in the middle."""
    middle = (diverges_at or 0) - MOST_PIECES // 2
    return max(0, min(middle, tokens - MOST_PIECES))


def _token_texts(model: ServedModel, tokens: Sequence[int]) -> list[str]:
    text = model.tokenizer.token_text
    return [text(token) if token < model.vocab else "" for token in tokens]
