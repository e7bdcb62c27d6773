"""POST /v1/messages and /v1/messages/count_tokens. Query parameters such as `beta` are ignored."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.anthropic import prompt
from omlx_server.api.anthropic.answers import AssistantTurn, CountedTokens, Ending, MessageEvent
from omlx_server.api.anthropic.events import PING, MessageEvents, assemble_message
from omlx_server.api.anthropic.request import CountRequest, MessagesRequest
from omlx_server.api.anthropic.turns import image_chars
from omlx_server.api.chat.choices import CACHE_HEADERS, Choices
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, STATE, WORK, Events, Operation
from omlx_server.api.http import sse
from omlx_server.api.http.anthropic_errors import envelope
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.exchange import request_id
from omlx_server.api.http.json import JsonResponse

router = APIRouter()

_MESSAGES = Operation(
    "Messages",
    AssistantTurn,
    body=MessagesRequest,
    events=Events(MessageEvent, named=True),
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra
_COUNT = Operation("Messages", CountedTokens, body=CountRequest, may_fail=MODEL + STATE).extra


@router.post("/v1/messages", openapi_extra=_MESSAGES)
async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    body = await body_of(request, MessagesRequest)
    turn = await _chat_turn(request, body)
    choices = await while_connected(request.receive, turn.start())
    if not body.stream:
        message = await while_connected(request.receive, _whole_message(body, choices))
        return JsonResponse(message, headers=choices.headers())
    return sse.EventStream(
        _encoded_events(body, choices),
        context_of(request).keepalive_seconds,
        choices.headers,
        on_error=lambda error: sse.named_events(envelope(error, request_id())),
        keepalive=PING,
    )


@router.post("/v1/messages/count_tokens", openapi_extra=_COUNT)
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a message's prompt, cached ones included."""
    body = await body_of(request, CountRequest)
    turn = await _chat_turn(request, body)
    count = await while_connected(request.receive, turn.count_tokens())
    return JsonResponse(CountedTokens(input_tokens=count))


async def _chat_turn(request: Request, body: CountRequest) -> ChatTurn:
    context = context_of(request)
    model = await context.models.find(body.model, adapter=body.adapter, preset=body.preset)
    chat = await context.threads.run(
        prompt.chat_request, body, model.template, other_bytes=image_chars(body)
    )
    return ChatTurn(chat, model, request, f"msg_{uuid.uuid4().hex}")


async def _whole_message(body: MessagesRequest, choices: Choices) -> AssistantTurn:
    async with choices.generation:
        events = [event async for batch in _events_of(body, choices) for event in batch]
        return assemble_message(events)


async def _encoded_events(body: MessagesRequest, choices: Choices) -> AsyncGenerator[bytes, None]:
    async with choices.generation:
        async for events in _events_of(body, choices):
            yield sse.named_events(*events)


async def _events_of(body: MessagesRequest, choices: Choices) -> AsyncIterator[list[MessageEvent]]:
    """Yield lists of events. message_start waits for the count of cached tokens."""
    request = choices.generation.request
    maker = MessageEvents(request.id, body.model, choices.usage)
    fills_context = request.sampling.max_tokens < body.max_tokens
    has_started = False
    async for delta in choices.deltas():
        events = [] if has_started else maker.start()
        has_started = True
        for part in delta.parts:
            events += maker.add(part)
        if delta.finish is not None:
            events += maker.end(Ending(delta.finish, delta.stopped, fills_context))
        if events:
            yield events
