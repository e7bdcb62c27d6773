"""POST /api/chat and POST /api/generate: answers as JSON lines, or whole if `stream` is false."""

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.chat.choices import CACHE_HEADERS, Choices, WholeChoice
from omlx_server.api.chat.turn import ChatTurn, submit
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
from omlx_server.core.request import Request as EngineRequest
from omlx_server.core.request import RequestId
from omlx_server.text.answers.form import AnswerForm

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
class _Asked:
    """One request: what it wants, of which model, and for how long it waited for that."""

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
        return await _stays(request, body, message_body)
    asked = await _found(request, body)
    beside = messages.image_chars(body.messages)
    wanted = await context.threads.run(prompt.of_chat, body, asked.model, beside=beside)
    choices = await _started(asked, ChatTurn(wanted, asked.model, request, _id()))
    return await _answered(asked, choices, message_body)


@router.post("/api/generate", openapi_extra=_GENERATE)
async def generate(request: Request) -> Response:
    """Answer a prompt, or continue it, whole or as JSON lines."""
    context = context_of(request)
    body = await json_body.read(request, GenerateRequest, context.max_body_bytes)
    if not (body.prompt or body.suffix or body.images):
        return await _stays(request, body, response_body)
    asked = await _found(request, body)
    if body.raw or body.suffix:
        choices = await while_connected(request.receive, _continued(asked, body))
        return await _answered(asked, choices, response_body)
    beside = sum(map(len, body.images or ()))
    wanted = await context.threads.run(prompt.of_prompt, body, asked.model, beside=beside)
    choices = await _started(asked, ChatTurn(wanted, asked.model, request, _id()))
    return await _answered(asked, choices, response_body)


def _id() -> str:
    return f"ollama-{uuid.uuid4().hex}"


async def _stays(request: Request, body: WrittenRequest, shape: AnswerShape) -> Response:
    """The answer to a request for nothing but the model: it is loaded, or with a `keep_alive` of 0
    leaves as soon as nobody uses it."""
    models, seconds = context_of(request).models, seconds_of(body.keep_alive)
    if seconds == 0:
        known, _ = await models.named(body.model)
        models.keep(known.names[0], known.role, seconds)
        return JsonResponse(loaded(body.model, shape, "unload"))
    await _found(request, body)
    return JsonResponse(loaded(body.model, shape, "load"))


async def _found(request: Request, body: WrittenRequest) -> _Asked:
    """The request with its model, which is loaded first if need be and then stays as long as the
    request says. Raises what `ServedModels.find` raises, and BadRequest for its `keep_alive`."""
    models, seconds = context_of(request).models, seconds_of(body.keep_alive)
    name, began = await models.untagged(body.model), time.monotonic()
    model = await models.find(name, adapter=body.adapter, preset=body.preset)
    models.keep(name, CHAT, seconds)
    return _Asked(body, model, time.monotonic() - began, request)


async def _started(asked: _Asked, turn: ChatTurn) -> Choices:
    return await while_connected(asked.request.receive, turn.start())


async def _continued(asked: _Asked, body: GenerateRequest) -> Choices:
    """Queue a prompt as it is, or with the tokens around it that ask for what is before a suffix.
    Raises what `Turn.start` raises."""
    wanted, model = prompt.of_text(body, asked.model), asked.model
    wanted.check()
    threads = context_of(asked.request).threads
    [encoded] = await threads.run(completion_prompts.encode, wanted, model)
    with model.engine.preparing():
        grammar = None if wanted.format is None else await model.grammars.constraint(wanted.format)
        request = EngineRequest(
            RequestId(_id()),
            encoded.tokens,
            wanted.params(model, max_tokens=encoded.max_tokens, top_logprobs=wanted.logprobs),
            constraint=grammar,
        )
        form = AnswerForm(wanted.stops(model), continues=True)
        return await submit(request, form, model, asked.request, wanted)


async def _answered(asked: _Asked, choices: Choices, body: AnswerShape) -> Response:
    """The response with the answer that `choices` give."""
    given, request = asked.body, asked.request
    logs = bool(given.logprobs)
    shapes = AnswerShapes(given.model, body, current(), asked.load_seconds, with_logprobs=logs)
    if given.stream is False:
        whole = await while_connected(request.receive, _whole(shapes, choices))
        return JsonResponse(whole, headers=choices.headers())
    seconds = context_of(request).keepalive_seconds
    return JsonLineStream(_lines(shapes, choices), seconds, shapes.nothing(), choices.headers)


async def _whole(shapes: AnswerShapes, choices: Choices) -> dict[str, object]:
    """The whole answer as one JSON value; closes the generation."""
    choice = WholeChoice()
    async with choices.generation:
        async for delta in choices.deltas():
            choice.add(delta)
    return shapes.whole(choice, choices.usage)


async def _lines(shapes: AnswerShapes, choices: Choices) -> AsyncGenerator[bytes, None]:
    """The answer as JSON lines; closes the generation."""
    async with choices.generation:
        async for delta in choices.deltas():
            found = list(shapes.lines(delta, choices.usage))
            if found:
                yield b"".join(map(line, found))
