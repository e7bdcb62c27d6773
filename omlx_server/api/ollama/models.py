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
from omlx_server.api.ollama import answers, model_card, schema
from omlx_server.api.ollama.prompt import OPTION_NAMES
from omlx_server.api.ollama.shapes import rfc3339
from omlx_server.api.openai.models import by_name
from omlx_server.core.request import SamplingPresets
from omlx_server.engine.pool.entry import Phase, PoolEntry
from omlx_server.errors import BadRequest

router = APIRouter()

OLLAMA_VERSION = "0.13.5"
"""Clients refuse versions that are older than what they need."""
_NEVER_SECONDS = 292 * 365 * 86_400.0  # as long as Ollama writes for a model that stays

_SHOW = Operation("Ollama", answers.ShownModel, body=schema.ShowRequest, may_fail=MODEL).extra


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
    served = {name: one for name, one in by_name(models).items() if one.role is not RERANKING}
    adapters = await models.adapter_names_of(served.values())
    listings: dict[str, ModelListing] = {}
    for name, listing in served.items():
        listings[name] = listing
        listings |= {f"{name}:{adapter}": listing for adapter in adapters[id(listing)]}
    tagged = await asyncio.to_thread(
        lambda: [_tagged_model(models, name, listing) for name, listing in listings.items()]
    )
    return JsonResponse(answers.Tags(models=tagged))


@router.get("/api/ps", openapi_extra=Operation("Ollama", answers.Running).extra)
async def running(request: Request) -> Response:
    """List the loaded models."""
    models = context_of(request).models
    loaded: list[tuple[ModelListing, PoolEntry[Served]]] = []
    for listing in models.known():
        entry = models.pool.entry(listing.load_request.key)
        if entry is not None and entry.phase is Phase.LOADED:
            loaded.append((listing, entry))
    shapes = await asyncio.to_thread(lambda: [_running_model(models, *one) for one in loaded])
    return JsonResponse(answers.Running(models=shapes))


@router.post("/api/show", openapi_extra=_SHOW)
async def show(request: Request) -> Response:
    """Show one model."""
    body = await body_of(request, schema.ShowRequest)
    name = body.model or body.name
    if not name:
        raise BadRequest("model is missing", param="model")
    models = context_of(request).models
    listing, _ = await models.find_listing_and_adapter(name)
    takes_images = models.takes_images(listing)
    directory = models.catalogue.directory(listing.load_request.key)
    shown = await asyncio.to_thread(_shown_model, name, listing, directory, takes_images)
    return JsonResponse(shown)


def _tagged_model(models: ServedModels, name: str, listing: ModelListing) -> answers.TaggedModel:
    card = model_card.read_card(models.catalogue.directory(listing.load_request.key))
    return {
        "name": name,
        "model": name,
        "modified_at": rfc3339(card.modified or listing.created),
        "size": listing.load_request.nbytes,
        "digest": card.digest,
        "details": _model_details(card),
    }


def _running_model(
    models: ServedModels, listing: ModelListing, entry: PoolEntry[Served]
) -> answers.RunningModel:
    card = model_card.read_card(models.catalogue.directory(listing.load_request.key))
    ttl_seconds = math.inf if entry.is_pinned or not entry.ttl else entry.ttl
    idle_seconds = 0.0 if entry.users else time.monotonic() - entry.used
    seconds_left = min(max(0.0, ttl_seconds - idle_seconds), _NEVER_SECONDS)
    return {
        "name": listing.names[0],
        "model": listing.names[0],
        "size": listing.load_request.nbytes,
        "size_vram": listing.load_request.nbytes,
        "digest": card.digest,
        "details": _model_details(card),
        "expires_at": rfc3339(time.time() + seconds_left),
        "context_length": listing.context_length or 0,
    }


def _model_details(card: model_card.ModelCard) -> answers.ModelDetails:
    return {
        "parent_model": "",
        "format": "mlx",
        "family": card.family,
        "families": [card.family] if card.family else [],
        "parameter_size": model_card.in_words(card.parameters),
        "quantization_level": card.quantization,
    }


def _shown_model(
    name: str, listing: ModelListing, directory: Path | None, takes_images: bool
) -> answers.ShownModel:
    card = model_card.read_card(directory)
    template_file, parser = listing.template_file, listing.reasoning_parser
    abilities = model_card.read_abilities(directory, template_file, parser)
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": _parameter_lines(listing),
        "template": abilities.template,
        "details": _model_details(card),
        "model_info": _model_info(listing, card),
        "capabilities": _capabilities(listing, abilities, takes_images),
        "modified_at": rfc3339(card.modified or listing.created),
    }


def _parameter_lines(listing: ModelListing) -> str:
    if listing.role is not CHAT:
        return ""
    names = [field.name for field in dataclasses.fields(SamplingPresets)]
    return "\n".join(
        f"{OPTION_NAMES.get(name, name)} {getattr(listing.defaults, name)}" for name in names
    )


def _capabilities(
    listing: ModelListing, abilities: model_card.Abilities, takes_images: bool
) -> list[answers.Capability]:
    if listing.role is EMBEDDING:
        return ["embedding"]
    if listing.role is not CHAT:
        return []
    capabilities: dict[answers.Capability, bool] = {
        "completion": True,
        "tools": abilities.tools,
        "vision": takes_images,
        "thinking": abilities.thinking,
        "insert": abilities.insert,
    }
    return [name for name, is_there in capabilities.items() if is_there]


def _model_info(listing: ModelListing, card: model_card.ModelCard) -> dict[str, str | int]:
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
