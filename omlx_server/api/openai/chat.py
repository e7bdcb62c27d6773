"""POST /v1/chat/completions."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api import body, sse
from omlx_server.api.choices import Choices, LoggedToken
from omlx_server.api.context import ApiContext, context_of
from omlx_server.api.json import JsonResponse
from omlx_server.api.openai import prompt
from omlx_server.api.openai.schema import ChatRequest
from omlx_server.api.openai.shapes import ChatShapes
from omlx_server.api.served import ServedModel
from omlx_server.api.tenant import salt_of
from omlx_server.core.request import Miss, RequestId
from omlx_server.engine.client import Generation

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body.described(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    context = context_of(request)
    chat = await body.read(request, ChatRequest, context.max_body_bytes)
    model = context.models.find(chat.model)
    prompt.check_supported(chat)
    answer = _Answer(chat, model, context, salt_of(request, chat.cache_salt))
    if chat.stream:
        generation = await sse.while_connected(request.receive, answer.start())
        late = partial(cache_headers, generation)
        return sse.EventStream(answer.events(generation), context.ping_seconds, late)
    content, headers = await sse.while_connected(request.receive, answer.whole())
    return JsonResponse(content, headers=headers)


class _Answer:
    """One response on its way. Cancelling what runs here closes the generation."""

    def __init__(
        self, chat: ChatRequest, model: ServedModel, context: ApiContext, salt: bytes
    ) -> None:
        self._chat = chat
        self._model = model
        self._context = context
        self._salt = salt
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        created = int(time.time())
        logged = bool(chat.logprobs)
        self._shapes = ChatShapes(self._id, created, chat.model, with_logprobs=logged)

    async def start(self) -> Generation:
        """Render, encode and queue. All that is wrong with a request comes out here."""
        with self._model.engine.preparing():
            encoded = await asyncio.to_thread(prompt.encode, self._chat, self._model)
            request = prompt.build_request(
                self._chat,
                self._model,
                RequestId(self._id),
                encoded,
                timeout=self._context.request_timeout_seconds,
                salt=self._salt,
            )
            return await self._model.engine.submit(request)

    async def whole(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The response in one piece, and its headers."""
        async with await self.start() as generation:
            count = generation.request.n
            texts: list[list[str]] = [[] for _ in range(count)]
            tokens: list[list[LoggedToken]] = [[] for _ in range(count)]
            finishes: list[str | None] = [None] * count
            choices = self._choices(generation)
            async for delta in choices.deltas():
                texts[delta.index].append(delta.text)
                tokens[delta.index] += delta.tokens
                finishes[delta.index] = delta.finish
        answers = [
            self._shapes.choice(i, "".join(texts[i]), tokens[i], finishes[i]) for i in range(count)
        ]
        return self._shapes.completion(answers, choices.usage), cache_headers(generation)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The response as events; usage in a last chunk when it was asked for."""
        with_usage = self._chat.with_usage
        extra = {"usage": None} if with_usage else {}
        async with generation:
            choices = self._choices(generation)
            opened: set[int] = set()
            async for delta in choices.deltas():
                chunks = self._shapes.delta(delta)
                if delta.index not in opened:
                    opened.add(delta.index)
                    chunks.insert(0, self._shapes.opening(delta.index))
                yield b"".join(sse.event({**chunk, **extra}) for chunk in chunks)
            if with_usage:
                yield sse.event(self._shapes.last(choices.usage))
            yield sse.DONE

    def _choices(self, generation: Generation) -> Choices:
        include_stop = bool(self._chat.include_stop_str_in_output)
        followed = self._context.metrics.follow(len(generation.request.tokens))
        return Choices(generation, self._model.tokenizer, self._chat.stops, include_stop, followed)


def cache_headers(generation: Generation) -> dict[str, str]:
    """What the prefix cache had, as response headers, once it is known."""
    found = generation.admission
    if found is None:
        return {}
    headers = {"X-Omlx-Cached-Tokens": str(found.cached)}
    if found.miss is not Miss.NONE:
        headers["X-Omlx-Cache-Miss"] = f"{found.miss}; known-tokens={found.known}"
    return headers
