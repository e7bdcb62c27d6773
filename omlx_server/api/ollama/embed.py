"""POST /api/embed and POST /api/embeddings: vectors of texts."""

import asyncio
import time

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http import json_body
from omlx_server.api.http.exchange import current
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.encoders import EMBEDDING, ServedEmbedder
from omlx_server.api.ollama import answers
from omlx_server.api.ollama.keep_alive import seconds_of
from omlx_server.api.ollama.request import EmbeddingsRequest, EmbedRequest, KeepAlive
from omlx_server.api.ollama.shapes import nanoseconds
from omlx_server.api.openai import embeddings as openai

router = APIRouter()

_WHAT_FITS = -1
_EMBED = Operation("Ollama", answers.Embedded, body=EmbedRequest, may_fail=MODEL + WORK).extra
_EMBEDDINGS = Operation(
    "Ollama", answers.EmbeddedOne, body=EmbeddingsRequest, may_fail=MODEL + WORK
).extra


@router.post("/api/embed", openapi_extra=_EMBED)
async def embed(request: Request) -> Response:
    """Return a vector for each text, in order. An empty text only loads the model."""
    body = await json_body.read(request, EmbedRequest, context_of(request).max_body_bytes)
    began = time.monotonic()
    model = await _embedder(request, body.model, body.keep_alive)
    load_seconds = time.monotonic() - began
    texts = body.input if isinstance(body.input, list) else [body.input] if body.input else []
    most = None if body.truncate is False else _WHAT_FITS
    vectors, tokens = await _vectors(
        request, model, texts, truncate_prompt_tokens=most, dimensions=body.dimensions
    )
    answer = {
        "model": body.model,
        "embeddings": vectors,
        "total_duration": nanoseconds(time.monotonic() - current().started),
        "load_duration": nanoseconds(load_seconds),
        "prompt_eval_count": tokens,
    }
    return await asyncio.to_thread(JsonResponse, answer)


@router.post("/api/embeddings", openapi_extra=_EMBEDDINGS)
async def embeddings(request: Request) -> Response:
    """Return a vector for one text. An empty text only loads the model."""
    body = await json_body.read(request, EmbeddingsRequest, context_of(request).max_body_bytes)
    model = await _embedder(request, body.model, body.keep_alive)
    texts = [body.prompt] if body.prompt else []
    vectors, _ = await _vectors(request, model, texts, truncate_prompt_tokens=_WHAT_FITS)
    return JsonResponse({"embedding": vectors[0] if vectors else []})


async def _embedder(request: Request, name: str, keep_alive: KeepAlive | None) -> ServedEmbedder:
    models, seconds = context_of(request).models, seconds_of(keep_alive)
    plain = await models.untagged(name)
    model = await models.embedder(plain)
    models.keep(plain, EMBEDDING, seconds)
    return model


async def _vectors(
    request: Request, model: ServedEmbedder, texts: list[str], **options: int | None
) -> tuple[list[orjson.Fragment], int]:
    if not texts:
        return [], 0
    embedding = openai.EmbeddingRequest.model_validate({"input": texts, **options})
    vectors, tokens = await openai.embedded(request, embedding, model)
    return [openai.as_numbers(vector) for vector in vectors], tokens
