"""GET /api/tags, /api/ps, /api/version and POST /api/show: the models and their facts."""

import asyncio
import dataclasses
import math
import time
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import CHAT, EMBEDDING, RERANKING, Served
from omlx_server.api.ollama import answers
from omlx_server.api.ollama.about import Abilities, ModelCard, abilities, about, in_words
from omlx_server.api.ollama.prompt import OPTION_NAMES
from omlx_server.api.ollama.request import ShowRequest
from omlx_server.api.ollama.shapes import rfc3339
from omlx_server.api.openai.models import by_name
from omlx_server.core.request import SamplingPresets
from omlx_server.engine.pool.entry import Phase, PoolEntry
from omlx_server.errors import BadRequest

router = APIRouter()

OLLAMA_VERSION = "0.13.5"
"""Clients refuse versions that are older than what they need."""
_CENTURIES = 292 * 365 * 86_400.0  # seconds; as long as Ollama writes for a model that stays

_SHOW = Operation("Ollama", answers.ShownModel, body=ShowRequest, may_fail=MODEL).extra


@router.get("/api/version", openapi_extra=Operation("Ollama", answers.OllamaVersion).extra)
async def version() -> Response:
    """Return the version of Ollama whose API this is."""
    return JsonResponse(answers.OllamaVersion(version=OLLAMA_VERSION))


@router.get("/api/tags", openapi_extra=Operation("Ollama", answers.Tags).extra)
async def tags(request: Request) -> Response:
    """List chat and embedding models, loaded or not, by every name a request may use, adapters
    included. Rerankers are left out, as Ollama has none."""
    models = context_of(request).models
    await models.catalogue.refresh()
    named = {name: one for name, one in by_name(models).items() if one.role is not RERANKING}
    adapters = await models.adapters_of(named.values())
    listings: dict[str, ModelListing] = {}
    for name, one in named.items():
        listings[name] = one
        listings |= {f"{name}:{adapter}": one for adapter in adapters[id(one)]}
    shapes = await asyncio.to_thread(
        lambda: [_tagged(models, name, one) for name, one in listings.items()]
    )
    return JsonResponse(answers.Tags(models=shapes))


@router.get("/api/ps", openapi_extra=Operation("Ollama", answers.Running).extra)
async def running(request: Request) -> Response:
    """List the loaded models."""
    models = context_of(request).models
    entries = [(one, models.pool.entry(one.wanted.key)) for one in models.known()]
    loaded = [
        (one, entry) for one, entry in entries if entry is not None and entry.phase is Phase.LOADED
    ]
    shapes = await asyncio.to_thread(lambda: [_run(models, one, entry) for one, entry in loaded])
    return JsonResponse(answers.Running(models=shapes))


@router.post("/api/show", openapi_extra=_SHOW)
async def show(request: Request) -> Response:
    """Show one model."""
    body = await body_of(request, ShowRequest)
    name = body.model or body.name
    if not name:
        raise BadRequest("model is missing", param="model")
    models = context_of(request).models
    listing, _ = await models.named(name)
    takes_images = models.takes_images(listing)
    directory = models.catalogue.directory(listing.wanted.key)
    return JsonResponse(await asyncio.to_thread(_shown, name, listing, directory, takes_images))


def _about(models: ServedModels, listing: ModelListing) -> ModelCard:
    return about(models.catalogue.directory(listing.wanted.key))


def _tagged(models: ServedModels, name: str, listing: ModelListing) -> answers.TaggedModel:
    card = _about(models, listing)
    return {
        "name": name,
        "model": name,
        "modified_at": rfc3339(card.modified or listing.created),
        "size": listing.wanted.nbytes,
        "digest": card.digest,
        "details": _details(card),
    }


def _run(
    models: ServedModels, listing: ModelListing, entry: PoolEntry[Served]
) -> answers.RunningModel:
    card = _about(models, listing)
    stays = math.inf if entry.is_pinned or not entry.ttl else entry.ttl
    idle = 0.0 if entry.users else time.monotonic() - entry.used
    left = min(max(0.0, stays - idle), _CENTURIES)
    return {
        "name": listing.names[0],
        "model": listing.names[0],
        "size": listing.wanted.nbytes,
        "size_vram": listing.wanted.nbytes,
        "digest": card.digest,
        "details": _details(card),
        "expires_at": rfc3339(time.time() + left),
        "context_length": listing.context_length or 0,
    }


def _details(card: ModelCard) -> answers.ModelDetails:
    return {
        "parent_model": "",
        "format": "mlx",
        "family": card.family,
        "families": [card.family] if card.family else [],
        "parameter_size": in_words(card.parameters),
        "quantization_level": card.quantization,
    }


def _shown(
    name: str, listing: ModelListing, directory: Path | None, takes_images: bool
) -> answers.ShownModel:
    card = about(directory)
    able = abilities(directory, listing.template_file, listing.reasoning_parser)
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": _parameters(listing),
        "template": able.template,
        "details": _details(card),
        "model_info": _info(listing, card),
        "capabilities": _capabilities(listing, able, takes_images),
        "modified_at": rfc3339(card.modified or listing.created),
    }


def _parameters(listing: ModelListing) -> str:
    if listing.role is not CHAT:
        return ""
    names = [field.name for field in dataclasses.fields(SamplingPresets)]
    return "\n".join(
        f"{OPTION_NAMES.get(name, name)} {getattr(listing.defaults, name)}" for name in names
    )


def _capabilities(
    listing: ModelListing, able: Abilities, takes_images: bool
) -> list[answers.Capability]:
    if listing.role is EMBEDDING:
        return ["embedding"]
    if listing.role is not CHAT:
        return []
    has: dict[answers.Capability, bool] = {
        "completion": True,
        "tools": able.tools,
        "vision": takes_images,
        "thinking": able.thinking,
        "insert": able.insert,
    }
    return [capability for capability, it_has in has.items() if it_has]


def _info(listing: ModelListing, card: ModelCard) -> dict[str, str | int]:
    arch = card.family or "unknown"
    info: dict[str, str | int] = {
        "general.architecture": arch,
        "general.basename": listing.names[0],
        "general.parameter_count": card.parameters,
        **{f"{arch}.{name}": size for name, size in card.sizes},
    }
    if listing.context_length is not None:
        info[f"{arch}.context_length"] = listing.context_length
    return info
