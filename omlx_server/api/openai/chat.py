"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.access.tenant import tenant_of
from omlx_server.api.chat.choices import LoggedToken
from omlx_server.api.chat.finish import Finish
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.turn import Turn
from omlx_server.api.context import context_of
from omlx_server.api.description.operation import MODEL, WORK, Events, described
from omlx_server.api.http import body, sse
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.openai.answers import CACHE_HEADERS, ChatCompletion, ChatEvent
from omlx_server.api.openai.shapes import ChatShapes
from omlx_server.engine.client.generation import Generation
from omlx_server.text.parts import Part, assemble

router = APIRouter()

_DESCRIBED = described(
    "Chat",
    ChatCompletion,
    body=ChatRequest,
    events=Events(ChatEvent, done=True),
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
)


@router.post("/v1/chat/completions", openapi_extra=_DESCRIBED)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    context = context_of(request)
    chat = await body.read(request, ChatRequest, context.max_body_bytes)
    model = await context.models.find(chat.model)
    id = f"chatcmpl-{uuid.uuid4().hex}"
    turn = Turn(chat, model, context, id=id, tenant=tenant_of(request, chat.cache_salt))
    shapes = ChatShapes(
        id,
        int(time.time()),
        chat.model,
        model.system_fingerprint,
        with_logprobs=bool(chat.logprobs),
        with_usage=chat.with_usage,
    )
    answer = _Answer(chat, turn, shapes)
    if chat.stream:
        generation = await sse.while_connected(request.receive, turn.start())
        late = partial(turn.headers, generation)
        return sse.EventStream(answer.events(generation), context.ping_seconds, late)
    content, headers = await sse.while_connected(request.receive, answer.whole())
    return JsonResponse(content, headers=headers)


class _Answer:
    """One response in the form of chat completions."""

    def __init__(self, chat: ChatRequest, turn: Turn, shapes: ChatShapes) -> None:
        self._chat = chat
        self._turn = turn
        self._shapes = shapes

    async def whole(self) -> tuple[ChatCompletion, dict[str, str]]:
        """The response in one piece, and its headers."""
        async with await self._turn.start() as generation:
            count = generation.request.n
            parts: list[list[Part]] = [[] for _ in range(count)]
            tokens: list[list[LoggedToken]] = [[] for _ in range(count)]
            finishes: dict[int, Finish] = {}
            choices = self._turn.choices(generation)
            async for delta in choices.deltas():
                parts[delta.index] += delta.parts
                tokens[delta.index] += delta.tokens
                if delta.finish is not None:
                    finishes[delta.index] = delta.finish
        answers = [
            self._shapes.choice(i, assemble(parts[i]), tokens[i], finishes[i]) for i in range(count)
        ]
        return self._shapes.completion(answers, choices.usage), self._turn.headers(generation)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The response as events; usage in a last chunk when it was asked for."""
        async with generation:
            choices = self._turn.choices(generation)
            opened: set[int] = set()
            async for delta in choices.deltas():
                chunks = self._shapes.delta(delta)
                if delta.index not in opened:
                    opened.add(delta.index)
                    chunks.insert(0, self._shapes.opening(delta.index))
                yield b"".join(map(sse.event, chunks))
            if self._chat.with_usage:
                yield sse.event(self._shapes.last(choices.usage))
            yield sse.DONE
