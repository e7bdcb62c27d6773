"""GET /api/tags, /api/ps and /api/version, and POST /api/show: which models there are, and what
they are."""

import asyncio
import dataclasses
import math
import time
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, Operation
from omlx_server.api.http import json_body
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.encoders import CHAT, EMBEDDING, RERANKING
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import Served
from omlx_server.api.ollama import answers
from omlx_server.api.ollama.about import Abilities, ModelCard, abilities, about, in_words
from omlx_server.api.ollama.lines import rfc3339
from omlx_server.api.ollama.prompt import OPTION_NAMES
from omlx_server.api.ollama.request import ShowRequest
from omlx_server.api.openai.models import by_name
from omlx_server.core.request import SamplingPresets
from omlx_server.engine.pool.entry import Phase, PoolEntry
from omlx_server.errors import BadRequest

router = APIRouter()

OLLAMA_VERSION = "0.13.5"
"""Clients refuse versions that are older than what they need."""
_CENTURIES = 292 * 365 * 86_400.0  # seconds; as long as Ollama writes for a model that stays

_TAGS = Operation("Ollama", answers.Tags).extra
_RUNNING = Operation("Ollama", answers.Running).extra
_SHOW = Operation("Ollama", answers.ShownModel, body=ShowRequest, may_fail=MODEL).extra
_VERSION = Operation("Ollama", answers.OllamaVersion).extra


@router.get("/api/version", openapi_extra=_VERSION)
async def version() -> Response:
    """The version of Ollama whose API this is."""
    return JsonResponse(answers.OllamaVersion(version=OLLAMA_VERSION))


@router.get("/api/tags", openapi_extra=_TAGS)
async def tags(request: Request) -> Response:
    """The models that chat or embed, loaded or not, by every name that a request may use, adapters
    included. A reranker is none of Ollama's kinds."""
    models = context_of(request).models
    await models.catalogue.refresh()
    found = {name: one for name, one in by_name(models).items() if one.role is not RERANKING}
    adapters, listed = await models.adapters_of(found.values()), dict[str, ModelListing]()
    for name, one in found.items():
        listed[name] = one
        listed |= {f"{name}:{adapter}": one for adapter in adapters[id(one)]}
    return JsonResponse(await asyncio.to_thread(_tags, models, listed))


@router.get("/api/ps", openapi_extra=_RUNNING)
async def running(request: Request) -> Response:
    """The models that are loaded."""
    models = context_of(request).models
    entries = [(one, models.pool.entry(one.wanted.key)) for one in models.known()]
    loaded = [
        (one, entry) for one, entry in entries if entry is not None and entry.phase is Phase.LOADED
    ]
    return JsonResponse(await asyncio.to_thread(_running, models, loaded))


@router.post("/api/show", openapi_extra=_SHOW)
async def show(request: Request) -> Response:
    """What is known of one model."""
    context = context_of(request)
    asked = await json_body.read(request, ShowRequest, context.max_body_bytes)
    name = asked.model or asked.name
    if not name:
        raise BadRequest("model is missing", param="model")
    models = context.models
    known, _ = await models.named(name)
    takes_images = models.takes_images(known)
    directory = models.catalogue.directory(known.wanted.key)
    return JsonResponse(await asyncio.to_thread(_shown, name, known, directory, takes_images))


def _about(models: ServedModels, known: ModelListing) -> ModelCard:
    return about(models.catalogue.directory(known.wanted.key))


def _tags(models: ServedModels, listed: dict[str, ModelListing]) -> answers.Tags:
    return {"models": [_tagged(name, one, _about(models, one)) for name, one in listed.items()]}


def _tagged(name: str, known: ModelListing, found: ModelCard) -> answers.TaggedModel:
    return {
        "name": name,
        "model": name,
        "modified_at": rfc3339(found.modified or known.created),
        "size": known.wanted.nbytes,
        "digest": found.digest,
        "details": _details(found),
    }


def _running(
    models: ServedModels, loaded: list[tuple[ModelListing, PoolEntry[Served]]]
) -> answers.Running:
    return {"models": [_run(one, entry, _about(models, one)) for one, entry in loaded]}


def _run(known: ModelListing, entry: PoolEntry[Served], found: ModelCard) -> answers.RunningModel:
    stays = math.inf if entry.is_pinned or not entry.ttl else entry.ttl
    idle = 0.0 if entry.users else time.monotonic() - entry.used
    left = min(max(0.0, stays - idle), _CENTURIES)
    return {
        "name": known.names[0],
        "model": known.names[0],
        "size": known.wanted.nbytes,
        "size_vram": known.wanted.nbytes,
        "digest": found.digest,
        "details": _details(found),
        "expires_at": rfc3339(time.time() + left),
        "context_length": known.context_length or 0,
    }


def _details(found: ModelCard) -> answers.ModelDetails:
    return {
        "parent_model": "",
        "format": "mlx",
        "family": found.family,
        "families": [found.family] if found.family else [],
        "parameter_size": in_words(found.parameters),
        "quantization_level": found.quantization,
    }


def _shown(
    name: str, known: ModelListing, directory: Path | None, takes_images: bool
) -> answers.ShownModel:
    found = about(directory)
    able = abilities(directory, known.template_file, known.reasoning_parser)
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": _parameters(known),
        "template": able.template,
        "details": _details(found),
        "model_info": _info(known, found),
        "capabilities": _capabilities(known, able, takes_images),
        "modified_at": rfc3339(found.modified or known.created),
    }


def _parameters(known: ModelListing) -> str:
    """What counts for a request that leaves it out, one value a line, by Ollama's names."""
    if known.role is not CHAT:
        return ""
    names = [field.name for field in dataclasses.fields(SamplingPresets)]
    return "\n".join(
        f"{OPTION_NAMES.get(name, name)} {getattr(known.defaults, name)}" for name in names
    )


def _capabilities(
    known: ModelListing, able: Abilities, takes_images: bool
) -> list[answers.Capability]:
    if known.role is EMBEDDING:
        return ["embedding"]
    if known.role is not CHAT:
        return []
    has: dict[answers.Capability, bool] = {
        "completion": True,
        "tools": able.tools,
        "vision": takes_images,
        "thinking": able.thinking,
        "insert": able.insert,
    }
    return [capability for capability, it_has in has.items() if it_has]


def _info(known: ModelListing, found: ModelCard) -> dict[str, str | int]:
    arch = found.family or "unknown"
    info: dict[str, str | int] = {
        "general.architecture": arch,
        "general.basename": known.names[0],
        "general.parameter_count": found.parameters,
        **{f"{arch}.{name}": size for name, size in found.sizes},
    }
    if known.context_length is not None:
        info[f"{arch}.context_length"] = known.context_length
    return info
