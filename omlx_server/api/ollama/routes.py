"""POST /api/chat and POST /api/generate: answers as JSON lines, or whole if `stream` is false."""

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.chat.choices import CACHE_HEADERS, Choices, WholeChoice
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, WORK, Operation
from omlx_server.api.http import json_body
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.exchange import current
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.encoders import CHAT
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.ollama import answers, messages, prompt
from omlx_server.api.ollama.keep_alive import seconds_of
from omlx_server.api.ollama.lines import JsonLineStream, line
from omlx_server.api.ollama.request import GenerateRequest, OllamaChatRequest, WrittenRequest
from omlx_server.api.ollama.shapes import (
    AnswerShape,
    AnswerShapes,
    loaded,
    message_body,
    response_body,
)
from omlx_server.api.openai import completion_prompts

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
    context = context_of(request)
    body = await json_body.read(request, OllamaChatRequest, context.max_body_bytes)
    if not body.messages:
        return await _load_or_unload(request, body, message_body)
    job = await _load(request, body)
    beside = messages.image_chars(body.messages)
    chat_request = await context.threads.run(prompt.of_chat, body, job.model, beside=beside)
    return await _chat_answer(job, chat_request, message_body)


@router.post("/api/generate", openapi_extra=_GENERATE)
async def generate(request: Request) -> Response:
    """Answer a prompt, or continue it, whole or as JSON lines."""
    context = context_of(request)
    body = await json_body.read(request, GenerateRequest, context.max_body_bytes)
    if not (body.prompt or body.suffix or body.images):
        return await _load_or_unload(request, body, response_body)
    job = await _load(request, body)
    if body.raw or body.suffix:
        choices = await while_connected(request.receive, _continue(job, body))
        return await _answer(job, choices, response_body)
    beside = sum(map(len, body.images or ()))
    chat_request = await context.threads.run(prompt.of_prompt, body, job.model, beside=beside)
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
    shapes = AnswerShapes(body.model, shape, current(), job.load_seconds, with_logprobs=logs)
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
