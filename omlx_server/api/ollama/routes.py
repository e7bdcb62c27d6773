"""POST /api/chat and /api/generate, whole or as JSON lines; /api/embed and /api/embeddings."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.chat.choices import CACHE_HEADERS, Choices, WholeChoice
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.exchange import current_exchange
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served_model import CHAT, EMBEDDING, ServedEmbedder, ServedModel
from omlx_server.api.ollama import answers, prompt
from omlx_server.api.ollama.request import (
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    KeepAlive,
    OllamaChatRequest,
    WrittenRequest,
    seconds_of,
)
from omlx_server.api.ollama.shapes import (
    AnswerShape,
    AnswerShapes,
    JsonLineStream,
    line,
    loaded,
    message_body,
    nanoseconds,
    response_body,
)
from omlx_server.api.openai import completion_prompts
from omlx_server.api.openai import embeddings as openai_embeddings

router = APIRouter()

_CHAT = Operation(
    "Ollama",
    answers.ChatEnd | answers.ChatLoaded,
    body=OllamaChatRequest,
    lines=answers.ChatStream,
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra
_GENERATE = Operation(
    "Ollama",
    answers.GenerateEnd | answers.GenerateLoaded,
    body=GenerateRequest,
    lines=answers.GenerateStream,
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra
_WHAT_FITS = -1
_EMBED = Operation("Ollama", answers.Embedded, body=EmbedRequest, may_fail=MODEL + WORK).extra
_EMBEDDINGS = Operation(
    "Ollama", answers.EmbeddedOne, body=EmbeddingsRequest, may_fail=MODEL + WORK
).extra


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A request with its loaded model; `load_seconds` is the time it waited for it."""

    body: WrittenRequest
    model: ServedModel
    load_seconds: float
    request: Request


@router.post("/api/chat", openapi_extra=_CHAT)
async def chat(request: Request) -> Response:
    """Answer a conversation, whole or as JSON lines."""
    body = await body_of(request, OllamaChatRequest)
    if not body.messages:
        return await _load_or_unload(request, body, message_body)
    job = await _load(request, body)
    beside = prompt.image_chars(body.messages)
    run = context_of(request).threads.run
    chat_request = await run(prompt.of_chat, body, job.model, beside=beside)
    return await _chat_answer(job, chat_request, message_body)


@router.post("/api/generate", openapi_extra=_GENERATE)
async def generate(request: Request) -> Response:
    """Answer a prompt, or continue it, whole or as JSON lines."""
    body = await body_of(request, GenerateRequest)
    if not (body.prompt or body.suffix or body.images):
        return await _load_or_unload(request, body, response_body)
    job = await _load(request, body)
    if body.raw or body.suffix:
        choices = await while_connected(request.receive, _continue(job, body))
        return await _answer(job, choices, response_body)
    beside = sum(map(len, body.images or ()))
    run = context_of(request).threads.run
    chat_request = await run(prompt.of_prompt, body, job.model, beside=beside)
    return await _chat_answer(job, chat_request, response_body)


def _id() -> str:
    return f"ollama-{uuid.uuid4().hex}"


async def _load_or_unload(request: Request, body: WrittenRequest, shape: AnswerShape) -> Response:
    """Load the model, or unload it once unused if `keep_alive` is 0."""
    models, seconds = context_of(request).models, seconds_of(body.keep_alive)
    if seconds == 0:
        listing, _ = await models.named(body.model)
        models.keep(listing.names[0], listing.role, seconds)
        return JsonResponse(loaded(body.model, shape, "unload"))
    await _load(request, body)
    return JsonResponse(loaded(body.model, shape, "load"))


async def _load(request: Request, body: WrittenRequest) -> _Job:
    """Load the model, which stays as `keep_alive` says. Raises BadRequest for a wrong `keep_alive`,
    and as `ServedModels.find`."""
    models, seconds = context_of(request).models, seconds_of(body.keep_alive)
    name, began = await models.untagged(body.model), time.monotonic()
    model = await models.find(name, adapter=body.adapter, preset=body.preset)
    models.keep(name, CHAT, seconds)
    return _Job(body, model, time.monotonic() - began, request)


async def _chat_answer(job: _Job, chat_request: ChatRequest, shape: AnswerShape) -> Response:
    turn = ChatTurn(chat_request, job.model, job.request, _id())
    return await _answer(job, await while_connected(job.request.receive, turn.start()), shape)


async def _continue(job: _Job, body: GenerateRequest) -> Choices:
    """Queue a prompt as it is, or with the control tokens for a suffix. Raises as
    `ChatTurn.start`."""
    text, model = prompt.of_text(body, job.model), job.model
    text.check()
    [encoded] = await context_of(job.request).threads.run(completion_prompts.encode, text, model)
    return await completion_prompts.start(_id(), encoded, text, model, job.request)


async def _answer(job: _Job, choices: Choices, shape: AnswerShape) -> Response:
    body, request = job.body, job.request
    logs = bool(body.logprobs)
    shapes = AnswerShapes(
        body.model, shape, current_exchange(), job.load_seconds, with_logprobs=logs
    )
    if body.stream is False:
        whole = await while_connected(request.receive, _whole(shapes, choices))
        return JsonResponse(whole, headers=choices.headers())
    seconds = context_of(request).keepalive_seconds
    return JsonLineStream(_lines(shapes, choices), seconds, shapes.nothing(), choices.headers)


async def _whole(shapes: AnswerShapes, choices: Choices) -> dict[str, object]:
    choice = WholeChoice()
    async with choices.generation:
        async for delta in choices.deltas():
            choice.add(delta)
    return shapes.whole(choice, choices.usage)


async def _lines(shapes: AnswerShapes, choices: Choices) -> AsyncGenerator[bytes, None]:
    """Closes the generation at its end."""
    async with choices.generation:
        async for delta in choices.deltas():
            lines = list(shapes.lines(delta, choices.usage))
            if lines:
                yield b"".join(map(line, lines))


@router.post("/api/embed", openapi_extra=_EMBED)
async def embed(request: Request) -> Response:
    """Return a vector for each text, in order. An empty text only loads the model."""
    body = await body_of(request, EmbedRequest)
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
        "total_duration": nanoseconds(time.monotonic() - current_exchange().started),
        "load_duration": nanoseconds(load_seconds),
        "prompt_eval_count": tokens,
    }
    return await asyncio.to_thread(JsonResponse, answer)


@router.post("/api/embeddings", openapi_extra=_EMBEDDINGS)
async def embeddings(request: Request) -> Response:
    """Return a vector for one text. An empty text only loads the model."""
    body = await body_of(request, EmbeddingsRequest)
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
    embedding = openai_embeddings.EmbeddingRequest.model_validate({"input": texts, **options})
    vectors, tokens = await openai_embeddings.embed_inputs(request, embedding, model)
    return [openai_embeddings.as_numbers(vector) for vector in vectors], tokens
