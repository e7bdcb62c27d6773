"""The admin routes that list, load, unload and pin models."""

import time

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from omlx_server.api.admin.answers import AdminModel, AdminModels
from omlx_server.api.admin.guard import require_admin
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.http.json_body import StrictModel
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import Served, ServedModel
from omlx_server.engine.pool.entry import Phase, PoolEntry

router = APIRouter(dependencies=[Depends(require_admin)])

_CONFLICT = (409,)


class ModelName(StrictModel):
    model: str


class ModelPin(ModelName):
    pinned: bool = True


_LOAD = Operation("Admin", AdminModel, body=ModelName, may_fail=MODEL + WORK).extra
_UNLOAD = Operation("Admin", AdminModel, body=ModelName, may_fail=MODEL + _CONFLICT + WORK).extra
_PIN = Operation("Admin", AdminModel, body=ModelPin, may_fail=MODEL).extra


@router.get("/admin/models", openapi_extra=Operation("Admin", AdminModels).extra)
async def list_models(request: Request) -> Response:
    """All models on this machine, those that are loaded with what they hold."""
    models = context_of(request).models
    await models.catalogue.refresh()
    memory = models.vitals.memory
    answer: AdminModels = {
        "models": [
            _shape(models, listing) for listing in (*models.known(), *models.catalogue.broken())
        ],
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
    listing, wanted = await models.named(body.model)
    adapter = await models.adapter(listing, wanted) if wanted else None
    await models.pool.load(listing.wanted)
    entry = models.pool.entry(listing.wanted.key)
    shape = _shape(models, listing)
    if entry is not None and isinstance(entry.model, ServedModel):
        engine = entry.model.engine
        async with engine.adapting(adapter):
            shape["adapters"] = list(await engine.ask(lambda instance: instance.adapters.names))
    return JsonResponse(shape)


@router.post("/admin/models/unload", openapi_extra=_UNLOAD)
async def unload(request: Request) -> Response:
    """Give a model's memory back as soon as no request uses it."""
    context = context_of(request)
    body = await body_of(request, ModelName)
    listing, _ = await context.models.named(body.model)
    await context.models.pool.unload(listing.wanted.key)
    return JsonResponse(_shape(context.models, listing))


@router.post("/admin/models/pin", openapi_extra=_PIN)
async def pin(request: Request) -> Response:
    """Keep a model once it is loaded, until the server ends or the pin is taken back."""
    context = context_of(request)
    body = await body_of(request, ModelPin)
    listing, _ = await context.models.named(body.model)
    context.models.pool.pin(listing.wanted, body.pinned)
    return JsonResponse(_shape(context.models, listing))


def _shape(models: ServedModels, listing: ModelListing) -> AdminModel:
    entry = models.pool.entry(listing.wanted.key)
    model = entry.model if entry else None
    is_there = entry is not None and entry.phase is Phase.LOADED
    first = next(iter(models.catalogue.known()), None)
    status = model.engine.status if isinstance(model, ServedModel) else None
    chunks = status.chunks if status else None
    return {
        "name": listing.names[0],
        "names": [*listing.names, *_aliases(models, listing)],
        "kind": listing.role.kind,
        "state": (
            entry.phase if entry else Phase.FAILED if listing.problem else Phase.ABSENT
        ).value,
        "pinned": entry.is_pinned if entry else listing.wanted.pinned,
        "default": listing is first,
        "weight_bytes": _weight_bytes(model) if model is not None else None,
        "adapters": list(status.adapters) if status else [],
        "disk_bytes": listing.wanted.nbytes or None,
        "context_length": listing.context_length,
        "chunk_tokens": chunks.beside if chunks else None,
        "chunk_tokens_alone": chunks.alone if chunks else None,
        "in_use": entry.users if entry else 0,
        "idle_seconds": _idle(entry) if entry and is_there else None,
        "ttl_seconds": listing.wanted.ttl,
        "problem": (entry.problem if entry else listing.problem) or None,
    }


def _aliases(models: ServedModels, listing: ModelListing) -> list[str]:
    catalogue = models.catalogue
    return [alias for alias in catalogue.aliases if catalogue.resolve_alias(alias) in listing.names]


def _weight_bytes(model: Served) -> int | None:
    client = model.engine if isinstance(model, ServedModel) else model.client
    return client.weight_bytes if client is not None else None


def _idle(entry: PoolEntry[Served]) -> float:
    return 0.0 if entry.users else round(time.monotonic() - entry.used, 3)
