"""POST /v1/messages and /v1/messages/count_tokens. Query parameters, as `beta`, say nothing."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.access.tenant import tenant_of
from omlx_server.api.anthropic import prompt, shapes
from omlx_server.api.anthropic.answers import AssistantTurn, CountedTokens, MessageEvent
from omlx_server.api.anthropic.events import Ending, MessageEvents
from omlx_server.api.anthropic.schema import CountRequest, MessagesRequest
from omlx_server.api.anthropic.whole import assembled
from omlx_server.api.chat.finish import Finish
from omlx_server.api.chat.turn import Turn
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, STATE, WORK, Events, described
from omlx_server.api.http import body, sse
from omlx_server.api.http.exchange import request_id
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.openai.answers import CACHE_HEADERS
from omlx_server.engine.client.generation import Generation

router = APIRouter()

_MESSAGES = described(
    "Messages",
    AssistantTurn,
    body=MessagesRequest,
    events=Events(MessageEvent, named=True),
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
)
_COUNT = described("Messages", CountedTokens, body=CountRequest, may_fail=MODEL + STATE)


@router.post("/v1/messages", openapi_extra=_MESSAGES)
async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    limit = context_of(request).max_body_bytes
    asked = await body.read(request, MessagesRequest, limit)
    answer = _Answer(asked, await _turn(request, asked, asked.cache_salt))
    if not asked.stream:
        whole, headers = await sse.while_connected(request.receive, answer.whole())
        return JsonResponse(whole, headers=headers)
    generation = await sse.while_connected(request.receive, answer.start())
    return sse.EventStream(
        answer.stream(generation),
        context_of(request).ping_seconds,
        partial(answer.headers, generation),
        on_error=partial(shapes.error_event, request_id=request_id()),
        keepalive=shapes.PING,
    )


@router.post("/v1/messages/count_tokens", openapi_extra=_COUNT)
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of a message has, cached ones included."""
    asked = await body.read(request, CountRequest, context_of(request).max_body_bytes)
    turn = await _turn(request, asked, None)
    count = await sse.while_connected(request.receive, turn.count())
    return JsonResponse(CountedTokens(input_tokens=count))


async def _turn(request: Request, asked: CountRequest, cache_salt: str | None) -> Turn:
    """In a worker thread, because a long conversation takes a while to convert."""
    context = context_of(request)
    model = await context.models.find(asked.model)
    chat = await context.threads.run(partial(prompt.chat_request, asked, model.template))
    tenant = tenant_of(request, cache_salt)
    return Turn(chat, model, context, id=f"msg_{uuid.uuid4().hex}", tenant=tenant)


class _Answer:
    """One message on its way. Cancelling what runs here closes the generation."""

    def __init__(self, asked: MessagesRequest, turn: Turn) -> None:
        self._asked = asked
        self._turn = turn

    async def start(self) -> Generation:
        return await self._turn.start()

    def headers(self, generation: Generation) -> dict[str, str]:
        return self._turn.headers(generation)

    async def whole(self) -> tuple[AssistantTurn, dict[str, str]]:
        """The message in one piece, and its headers."""
        async with await self.start() as generation:
            events = [event async for some in self._events(generation) for event in some]
        return assembled(events), self.headers(generation)

    async def stream(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The message as server-sent events."""
        async with generation:
            async for events in self._events(generation):
                yield b"".join(map(shapes.sse, events))

    async def _events(self, generation: Generation) -> AsyncIterator[list[MessageEvent]]:
        """The first come with the first of the answer: then it is known what was cached."""
        choices = self._turn.choices(generation)
        told = MessageEvents(generation.request.id, self._asked.model, choices.usage)
        started = False
        async for delta in choices.deltas():
            events = [] if started else told.start()
            started = True
            for part in delta.parts:
                events += told.add(part)
            if delta.finish is not None:
                events += told.end(self._ending(generation, delta.finish, delta.stopped))
            if events:
                yield events

    def _ending(self, generation: Generation, finish: Finish, stopped: str | None) -> Ending:
        full = generation.request.sampling.max_tokens < self._asked.max_tokens
        return Ending(finish, stopped, full)
