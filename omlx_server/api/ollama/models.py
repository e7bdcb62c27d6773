"""GET /api/tags, /api/ps, /api/version and POST /api/show: the models and their facts."""

import asyncio
import dataclasses
import hashlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server import clock
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, Operation
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.abilities import Abilities, FileState, file_states, read_abilities
from omlx_server.api.models.listing import ModelListing
from omlx_server.api.models.served import ServedModels
from omlx_server.api.models.served_model import CHAT, EMBEDDING, RERANKING, Served
from omlx_server.api.ollama import answers, schema
from omlx_server.api.ollama.prompt import OPTION_NAMES
from omlx_server.api.ollama.shapes import rfc3339
from omlx_server.api.openai.models import by_name
from omlx_server.core.model_files.weights import gguf_parameters, own_quantization, quantization_of
from omlx_server.core.request import SamplingPresets
from omlx_server.engine.pool.entry import Phase, PoolEntry
from omlx_server.errors import BadRequest, ModelUnavailable
from omlx_server.models import layout
from omlx_server.models.json_file import read_object
from omlx_server.models.safetensors_header import TensorHeader, read_header

_CACHED_MODELS = 256
_DEFAULT_GROUP_SIZE = 64
_OLLAMA_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_PARAMETER_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
# Keys of config.json, and Ollama's names for them below the architecture.
_OLLAMA_SIZE_NAMES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
}
OLLAMA_VERSION = "0.13.5"
"""Clients refuse versions that are older than what they need."""
_NEVER_SECONDS = 292 * 365 * 86_400.0  # as long as Ollama writes for a model that stays


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Facts about a model. `sizes`: numbers of layers and the like, by Ollama's names. `modified`:
    seconds since 1970. `digest` covers the configuration and all files' names and sizes; clients
    cache by it."""

    family: str = ""
    quantization: str = ""
    parameters: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    modified: float = 0.0
    digest: str = "0" * 64


def read_card(directory: Path | None) -> ModelCard:
    states = file_states(directory)
    if directory is None or states is None:
        return ModelCard()
    return _read_cached_card(directory, states)


@lru_cache(_CACHED_MODELS)
def _read_cached_card(directory: Path, states: tuple[FileState, ...]) -> ModelCard:
    config = read_object(directory / "config.json")
    text_config = config.get("text_config")
    merged = {**config, **text_config} if isinstance(text_config, dict) else config
    sizes = ((name, merged.get(key)) for key, name in _OLLAMA_SIZE_NAMES.items())
    dtype = merged.get("dtype") or merged.get("torch_dtype")
    digested = f"{directory.name} {config!r} {[(name, size) for name, size, _ in states]}"
    return ModelCard(
        family=str(config.get("model_type", "")),
        quantization=quantization_of(config).removeprefix("GGUF ")
        or _OLLAMA_DTYPES.get(str(dtype), ""),
        parameters=gguf_parameters(config) or _count_parameters(directory, config),
        sizes=tuple((name, size) for name, size in sizes if type(size) is int),
        modified=max((changed for _, _, changed in states), default=0.0),
        digest=hashlib.sha256(digested.encode(errors="replace")).hexdigest(),
    )


def _count_parameters(directory: Path, config: Mapping[str, Any]) -> int:
    group_size = own_quantization(config).get("group_size")
    if type(group_size) is not int or group_size <= 0:
        group_size = _DEFAULT_GROUP_SIZE
    tensors: dict[str, TensorHeader] = {}
    try:
        for file in layout.weight_files(directory):
            header = read_header(file)
            tensors |= header.tensors if header else {}
    except (ModelUnavailable, OSError, ValueError):
        return 0
    return sum(_tensor_parameters(tensors, group_size))


def _tensor_parameters(tensors: Mapping[str, TensorHeader], group_size: int) -> Iterator[int]:
    """Yield each tensor's parameters. A weight packed into words of 32 bits has `group_size` for
    each of its scales."""
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        is_quantized = f"{stem}.scales" in tensors
        if is_quantized and kind in ("scales", "biases"):
            continue
        if is_quantized and kind == "weight" and tensor.dtype == "U32":
            yield prod(tensors[f"{stem}.scales"].shape) * group_size
        else:
            yield prod(tensor.shape)


def in_words(parameters: int) -> str:
    """Return a number of parameters as "8.0B" or "135M"; empty for 0."""
    for unit, letter in _PARAMETER_UNITS:
        if parameters >= unit:
            return f"{parameters / unit:.{1 if unit >= 10**9 else 0}f}{letter}"
    return str(parameters or "")


router = APIRouter()


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
    card = read_card(models.catalogue.directory(listing.load_request.key))
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
    card = read_card(models.catalogue.directory(listing.load_request.key))
    ttl_seconds = math.inf if entry.is_pinned or not entry.ttl else entry.ttl
    idle_seconds = 0.0 if entry.users else clock.now() - entry.used
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


def _model_details(card: ModelCard) -> answers.ModelDetails:
    return {
        "parent_model": "",
        "format": "mlx",
        "family": card.family,
        "families": [card.family] if card.family else [],
        "parameter_size": in_words(card.parameters),
        "quantization_level": card.quantization,
    }


def _shown_model(
    name: str, listing: ModelListing, directory: Path | None, takes_images: bool
) -> answers.ShownModel:
    card = read_card(directory)
    template_file, parser = listing.template_file, listing.reasoning_parser
    abilities = read_abilities(directory, template_file, parser)
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
    listing: ModelListing, abilities: Abilities, takes_images: bool
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


def _model_info(listing: ModelListing, card: ModelCard) -> dict[str, str | int]:
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
