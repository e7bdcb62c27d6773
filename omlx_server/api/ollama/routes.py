"""POST /api/chat and /api/generate, whole or as JSON lines; /api/embed and /api/embeddings."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server import clock
from omlx_server.api.chat.choices import CACHE_HEADERS, Choices, WholeChoice
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.exchange import current_exchange
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served_model import CHAT, EMBEDDING, ServedEmbedder, ServedModel
from omlx_server.api.ollama import answers, prompt, schema, shapes
from omlx_server.api.openai import completion_prompts
from omlx_server.api.openai import embeddings as openai_embeddings

router = APIRouter()

_CHAT = Operation(
    "Ollama",
    answers.ChatEnd | answers.ChatLoaded,
    body=schema.OllamaChatRequest,
    lines=answers.ChatStream,
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra
_GENERATE = Operation(
    "Ollama",
    answers.GenerateEnd | answers.GenerateLoaded,
    body=schema.GenerateRequest,
    lines=answers.GenerateStream,
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra
_TRUNCATE_TO_FIT = -1
_EMBED = Operation(
    "Ollama", answers.Embedded, body=schema.EmbedRequest, may_fail=MODEL + WORK
).extra
_EMBEDDINGS = Operation(
    "Ollama", answers.EmbeddedOne, body=schema.EmbeddingsRequest, may_fail=MODEL + WORK
).extra


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A request with its loaded model; `load_seconds` is the time it waited for it."""

    body: schema.WrittenRequest
    model: ServedModel
    load_seconds: float
    request: Request


@router.post("/api/chat", openapi_extra=_CHAT)
async def chat(request: Request) -> Response:
    """Answer a conversation, whole or as JSON lines."""
    body = await body_of(request, schema.OllamaChatRequest)
    if not body.messages:
        return await _load_or_unload(request, body, shapes.message_body)
    job = await _load_model(request, body)
    image_chars = sum(len(data) for turn in body.messages for data in turn.images or ())
    run = context_of(request).threads.run
    chat_request = await run(prompt.chat_request, body, job.model, other_bytes=image_chars)
    return await _answer_chat(job, chat_request, shapes.message_body)


@router.post("/api/generate", openapi_extra=_GENERATE)
async def generate(request: Request) -> Response:
    """Answer a prompt, or continue it, whole or as JSON lines."""
    body = await body_of(request, schema.GenerateRequest)
    if not (body.prompt or body.suffix or body.images):
        return await _load_or_unload(request, body, shapes.response_body)
    job = await _load_model(request, body)
    if body.raw or body.suffix:
        choices = await while_connected(request.receive, _queue_completion(job, body))
        return await _send_answer(job, choices, shapes.response_body)
    image_chars = sum(map(len, body.images or ()))
    run = context_of(request).threads.run
    chat_request = await run(
        prompt.chat_request_of_prompt, body, job.model, other_bytes=image_chars
    )
    return await _answer_chat(job, chat_request, shapes.response_body)


async def _load_or_unload(
    request: Request, body: schema.WrittenRequest, answer_body: shapes.AnswerBody
) -> Response:
    """Load the model, or unload it once unused if `keep_alive` is 0."""
    if schema.keep_alive_seconds(body.keep_alive) == 0:
        models = context_of(request).models
        listing, _ = await models.find_listing_and_adapter(body.model)
        models.keep(listing.names[0], listing.role, 0.0)
        return JsonResponse(shapes.load_answer(body.model, answer_body, "unload"))
    await _load_model(request, body)
    return JsonResponse(shapes.load_answer(body.model, answer_body, "load"))


async def _load_model(request: Request, body: schema.WrittenRequest) -> _Job:
    """Load the model, which stays as `keep_alive` says. Raises BadRequest for a wrong `keep_alive`,
    and as `ServedModels.find`."""
    models = context_of(request).models
    kept_seconds = schema.keep_alive_seconds(body.keep_alive)
    name = await models.without_latest_tag(body.model)
    began = clock.now()
    model = await models.find(name, adapter=body.adapter, preset=body.preset)
    models.keep(name, CHAT, kept_seconds)
    return _Job(body, model, clock.now() - began, request)


async def _answer_chat(
    job: _Job, chat_request: ChatRequest, answer_body: shapes.AnswerBody
) -> Response:
    turn = ChatTurn(chat_request, job.model, job.request, f"ollama-{uuid.uuid4().hex}")
    choices = await while_connected(job.request.receive, turn.start())
    return await _send_answer(job, choices, answer_body)


async def _queue_completion(job: _Job, body: schema.GenerateRequest) -> Choices:
    """Queue a prompt without a chat template. Raises as `ChatTurn.start`."""
    model = job.model
    completion = prompt.completion_request(body, model)
    completion.check()
    run = context_of(job.request).threads.run
    [encoded] = await run(completion_prompts.encode, completion, model)
    return await completion_prompts.start(
        f"ollama-{uuid.uuid4().hex}", encoded, completion, model, job.request
    )


async def _send_answer(job: _Job, choices: Choices, answer_body: shapes.AnswerBody) -> Response:
    body, request = job.body, job.request
    answer_lines = shapes.AnswerLines(
        body.model,
        answer_body,
        current_exchange(),
        job.load_seconds,
        with_logprobs=bool(body.logprobs),
    )
    if body.stream is False:
        answer = await while_connected(request.receive, _collect_answer(answer_lines, choices))
        return JsonResponse(answer, headers=choices.headers())
    return shapes.JsonLineStream(
        _stream_lines(answer_lines, choices),
        context_of(request).keepalive_seconds,
        answer_lines.keepalive_line(),
        choices.headers,
    )


async def _collect_answer(answer_lines: shapes.AnswerLines, choices: Choices) -> dict[str, object]:
    choice = WholeChoice()
    async with choices.generation:
        async for delta in choices.deltas():
            choice.add(delta)
    return answer_lines.whole(choice, choices.usage)


async def _stream_lines(
    answer_lines: shapes.AnswerLines, choices: Choices
) -> AsyncGenerator[bytes, None]:
    """Closes the generation at its end."""
    async with choices.generation:
        async for delta in choices.deltas():
            lines = list(answer_lines.lines(delta, choices.usage))
            if lines:
                yield b"".join(map(shapes.json_line, lines))


@router.post("/api/embed", openapi_extra=_EMBED)
async def embed(request: Request) -> Response:
    """Return a vector for each text, in order. An empty text only loads the model."""
    body = await body_of(request, schema.EmbedRequest)
    began = clock.now()
    model = await _load_embedder(request, body.model, body.keep_alive)
    load_seconds = clock.now() - began
    texts = body.input if isinstance(body.input, list) else [body.input]
    if body.input == "":
        texts = []
    truncation = None if body.truncate is False else _TRUNCATE_TO_FIT
    vectors, tokens = await _embed_texts(
        request, model, texts, truncate_prompt_tokens=truncation, dimensions=body.dimensions
    )
    answer = {
        "model": body.model,
        "embeddings": vectors,
        "total_duration": shapes.nanoseconds(clock.now() - current_exchange().started),
        "load_duration": shapes.nanoseconds(load_seconds),
        "prompt_eval_count": tokens,
    }
    return await asyncio.to_thread(JsonResponse, answer)


@router.post("/api/embeddings", openapi_extra=_EMBEDDINGS)
async def embeddings(request: Request) -> Response:
    """Return a vector for one text. An empty text only loads the model."""
    body = await body_of(request, schema.EmbeddingsRequest)
    model = await _load_embedder(request, body.model, body.keep_alive)
    texts = [body.prompt] if body.prompt else []
    vectors, _ = await _embed_texts(request, model, texts, truncate_prompt_tokens=_TRUNCATE_TO_FIT)
    return JsonResponse({"embedding": vectors[0] if vectors else []})


async def _load_embedder(
    request: Request, name: str, keep_alive: schema.KeepAlive | None
) -> ServedEmbedder:
    models = context_of(request).models
    kept_seconds = schema.keep_alive_seconds(keep_alive)
    untagged_name = await models.without_latest_tag(name)
    model = await models.embedder(untagged_name)
    models.keep(untagged_name, EMBEDDING, kept_seconds)
    return model


async def _embed_texts(
    request: Request, model: ServedEmbedder, texts: list[str], **options: int | None
) -> tuple[list[orjson.Fragment], int]:
    if not texts:
        return [], 0
    embedding = openai_embeddings.EmbeddingRequest.model_validate({"input": texts, **options})
    vectors, tokens = await openai_embeddings.embed_inputs(request, embedding, model)
    return [openai_embeddings.as_numbers(vector) for vector in vectors], tokens
