"""GET /v1/models and /v1/models/{id}. Ids may hold slashes."""

from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.chat.sampling import default_sampling
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import CHAT, EMBEDDING
from omlx_server.api.openai.answers import ModelArchitecture, ModelList, OpenAiModel
from omlx_server.errors import ModelNotFound

router = APIRouter()
_GET_MODEL = Operation("Models", OpenAiModel, may_fail=MODEL).extra


@router.get("/v1/models", openapi_extra=Operation("Models", ModelList).extra)
async def list_models(request: Request) -> Response:
    """List every name that a request may use."""
    models = context_of(request).models
    await models.catalogue.refresh()
    listings = by_name(models)
    adapters = await models.adapter_names_of(listings.values())
    shapes = []
    for name, listing in listings.items():
        shapes.append(_model_shape(models, name, listing))
        for adapter in adapters[id(listing)]:
            full_name = f"{name}:{adapter}"
            shapes.append(_model_shape(models, full_name, listing, parent=name, adapter=adapter))
    for alias in models.catalogue.aliases:
        base, lora = models.split_adapter(alias)
        if base in listings and lora in adapters[id(listings[base])]:
            shapes.append(_model_shape(models, alias, listings[base], parent=base, adapter=lora))
    page: ModelList = {
        "object": "list",
        "data": shapes,
        "has_more": False,
        "first_id": shapes[0]["id"] if shapes else None,
        "last_id": shapes[-1]["id"] if shapes else None,
    }
    return JsonResponse(page)


@router.get("/v1/models/{name:path}", openapi_extra=_GET_MODEL)
async def get_model(request: Request, name: str) -> Response:
    """Return one model by name."""
    models = context_of(request).models
    model, adapter = models.split_adapter(await models.without_latest_tag(name))
    listing = await models.find_listing(model or name)
    if adapter is None:
        return JsonResponse(_model_shape(models, name, listing))
    if adapter not in await models.adapter_names(listing):
        raise ModelNotFound(f"The model '{name[:200]}' does not exist.", param="model")
    return JsonResponse(_model_shape(models, name, listing, parent=model, adapter=adapter))


def by_name(models: ServedModels) -> dict[str, ModelListing]:
    """Return the models by name and alias; chat models take shared names."""
    listings: dict[str, ModelListing] = {}
    for listing in sorted(models.catalogue.known(), key=lambda listing: listing.role is not CHAT):
        for name in listing.names:
            listings.setdefault(name, listing)
    for alias in models.catalogue.aliases:
        target = listings.get(models.catalogue.resolve_alias(alias))
        if target is not None:
            listings.setdefault(alias, target)
    return listings


def _model_shape(
    models: ServedModels,
    name: str,
    model: ModelListing,
    parent: str | None = None,
    adapter: str | None = None,
) -> OpenAiModel:
    """Return the forms of OpenAI, vLLM, OpenRouter and Anthropic in one."""
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "omlx_server",
        "root": f"{model.names[0]}:{adapter}" if adapter else model.names[0],
        "parent": parent,
        "max_model_len": model.context_length,
        "architecture": _architecture(model, takes_images=models.takes_images(model)),
        "presets": list(model.presets),
        "default_parameters": _default_parameters(model) if model.role is CHAT else None,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": model.context_length,
        "max_tokens": model.context_length,
        "capabilities": None,  # whether it reasons is unknown until its tokenizer is loaded
        "deprecated_at": None,
        "line": None,
        "retires_at": None,
    }


def _default_parameters(model: ModelListing) -> dict[str, float]:
    most = model.defaults.max_tokens  # 0: as many as the context has room for
    return default_sampling(model.defaults) | ({"max_tokens": most} if most else {})


def _architecture(model: ModelListing, *, takes_images: bool) -> ModelArchitecture:
    takes: list[Literal["text", "image"]] = ["text", "image"] if takes_images else ["text"]
    gives: Literal["text", "embeddings", "rerank"] = "text"
    if model.role is not CHAT:
        gives = "embeddings" if model.role is EMBEDDING else "rerank"
    return {
        "modality": f"{'+'.join(takes)}->{gives}",
        "input_modalities": takes,
        "output_modalities": [gives],
    }
