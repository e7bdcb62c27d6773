"""The admin routes that list, load, unload and pin models."""

import asyncio

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from omlx_server import clock
from omlx_server.api.activity.activity import progress_of
from omlx_server.api.admin.answers import Ability, AdminModel, AdminModels
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.models.abilities import abilities_by_template
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import CHAT, Served, ServedModel
from omlx_server.core.memory.fit import CONTEXT, fit_of
from omlx_server.engine.pool.entry import Phase, PoolEntry

router = APIRouter(dependencies=[Depends(require_admin)])


class ModelName(StrictModel):
    model: str


class ModelPin(ModelName):
    pinned: bool = True


_LOAD = Operation("Admin", AdminModel, body=ModelName, may_fail=MODEL + WORK).extra
_UNLOAD = Operation("Admin", AdminModel, body=ModelName, may_fail=(*MODEL, 409, *WORK)).extra
_PIN = Operation("Admin", AdminModel, body=ModelPin, may_fail=MODEL).extra


@router.get("/admin/models", openapi_extra=Operation("Admin", AdminModels).extra)
async def list_models(request: Request) -> Response:
    """All models on this machine, those that are loaded with what they hold."""
    models = context_of(request).models
    await models.catalogue.refresh()
    memory = models.vitals.memory
    listings = (*models.known(), *models.catalogue.broken())
    answer: AdminModels = {
        "models": [await _describe_model(models, listing) for listing in listings],
        "memory": {
            "limit": memory.ledger.limit if memory else 0,
            "weights": memory.ledger.weights if memory else 0,
        },
    }
    return JsonResponse(answer)


@router.post("/admin/models/load", openapi_extra=_LOAD)
async def load(request: Request) -> Response:
    """Load a model, with MODEL:ADAPTER its adapter too, and tell when it is there. Others may have
    to leave for it."""
    body = await body_of(request, ModelName)
    models = context_of(request).models
    listing, adapter_name = await models.find_listing_and_adapter(body.model)
    adapter = await models.read_adapter(listing, adapter_name) if adapter_name else None
    await models.pool.load(listing.load_request)
    entry = models.pool.entry(listing.load_request.key)
    shape = await _describe_model(models, listing)
    if entry is not None and isinstance(entry.model, ServedModel):
        engine = entry.model.engine
        async with engine.keeping_adapter(adapter):
            shape["adapters"] = list(await engine.ask(lambda instance: instance.adapters.names))
    return JsonResponse(shape)


@router.post("/admin/models/unload", openapi_extra=_UNLOAD)
async def unload(request: Request) -> Response:
    """Give a model's memory back as soon as no request uses it."""
    context = context_of(request)
    body = await body_of(request, ModelName)
    listing, _ = await context.models.find_listing_and_adapter(body.model)
    await context.models.pool.unload(listing.load_request.key)
    return JsonResponse(await _describe_model(context.models, listing))


@router.post("/admin/models/pin", openapi_extra=_PIN)
async def pin(request: Request) -> Response:
    """Keep a model once it is loaded, until the server ends or the pin is taken back."""
    context = context_of(request)
    body = await body_of(request, ModelPin)
    listing, _ = await context.models.find_listing_and_adapter(body.model)
    context.models.pool.pin(listing.load_request, body.pinned)
    return JsonResponse(await _describe_model(context.models, listing))


async def _describe_model(models: ServedModels, listing: ModelListing) -> AdminModel:
    entry, aliases = models.pool.entry(listing.load_request.key), _aliases_of(models, listing)
    model = entry.model if entry else None
    default = next(iter(models.catalogue.known()), None)
    status = model.engine.status if isinstance(model, ServedModel) else None
    chunks = status.chunks if status else None
    return {
        "name": listing.names[0],
        "names": [*listing.names, *aliases],
        "aliases": aliases,
        "path": _path_of(models, listing),
        "abilities": await _abilities_of(models, listing),
        "presets": list(listing.presets),
        "fit": _fit_of(models, listing),
        "kind": listing.role.kind,
        "state": _phase_of(listing, entry).value,
        "load": progress_of(entry),
        "pinned": entry.is_pinned if entry else listing.load_request.pinned,
        "default": listing is default,
        "weight_bytes": _weight_bytes(model) if model is not None else None,
        "adapters": list(status.adapters) if status else [],
        "disk_bytes": listing.disk_bytes or None,
        "experts": listing.experts or None,
        "context_length": listing.context_length,
        "chunk_tokens": chunks.beside if chunks else None,
        "chunk_tokens_alone": chunks.alone if chunks else None,
        "in_use": entry.users if entry else 0,
        "idle_seconds": _idle_seconds(entry) if entry else None,
        "ttl_seconds": listing.load_request.ttl,
        "problem": (entry.problem if entry else listing.problem) or None,
    }


async def _abilities_of(models: ServedModels, listing: ModelListing) -> list[Ability]:
    if listing.role is not CHAT or listing.problem:
        return []
    directory = models.catalogue.directory(listing.load_request.key)
    by_template = await asyncio.to_thread(
        abilities_by_template, directory, listing.template_file, listing.reasoning_parser
    )
    abilities: dict[Ability, bool] = {
        "tools": by_template.tools,
        "thinking": by_template.thinking,
        "images": models.takes_images(listing),
    }
    return [name for name, is_there in abilities.items() if is_there]


def _phase_of(listing: ModelListing, entry: PoolEntry[Served] | None) -> Phase:
    if entry is not None:
        return entry.phase
    return Phase.FAILED if listing.problem else Phase.ABSENT


def _aliases_of(models: ServedModels, listing: ModelListing) -> list[str]:
    catalogue = models.catalogue
    return [alias for alias in catalogue.aliases if catalogue.resolve_alias(alias) in listing.names]


def _path_of(models: ServedModels, listing: ModelListing) -> str | None:
    key = listing.load_request.key
    path = key if listing.problem else models.catalogue.directory(key)
    return str(path) if path is not None else None


def _fit_of(models: ServedModels, listing: ModelListing) -> str | None:
    memory, weights = models.vitals.memory, listing.load_request.nbytes
    if memory is None or not memory.ledger.limit or listing.problem or not weights:
        return None
    context = listing.context_length or CONTEXT
    return fit_of(weights, listing.token_bytes, memory.ledger.limit, context).value


def _weight_bytes(model: Served) -> int | None:
    client = model.engine if isinstance(model, ServedModel) else model.client
    return client.weight_bytes if client is not None else None


def _idle_seconds(entry: PoolEntry[Served]) -> float | None:
    if entry.phase is not Phase.LOADED:
        return None
    return 0.0 if entry.users else round(clock.now() - entry.used, 3)
