"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterable

from fastapi import APIRouter, Request
from starlette.responses import Response

from omlx_server.api.chat.choices import (
    CACHE_HEADERS,
    ChoiceDelta,
    Choices,
    LoggedToken,
    WholeChoice,
)
from omlx_server.api.chat.finish import Finish
from omlx_server.api.chat.request import ChatRequest
from omlx_server.api.chat.tools import InputReader, input_of
from omlx_server.api.chat.turn import ChatTurn
from omlx_server.api.context import body_of, context_of
from omlx_server.api.description.operation import MODEL, WORK, Events, Operation
from omlx_server.api.http import sse
from omlx_server.api.http.client_gone import while_connected
from omlx_server.api.http.json import JsonResponse
from omlx_server.api.models.served_model import ServedModel
from omlx_server.api.openai import answers
from omlx_server.api.openai.shapes import logprobs, usage
from omlx_server.text.parts import Arguments, CallStart, Part, Text, Thought, ToolCall, assemble

router = APIRouter()

_DESCRIBED = Operation(
    "Chat",
    answers.ChatCompletion,
    body=ChatRequest,
    events=Events(answers.ChatEvent, done=True),
    headers=CACHE_HEADERS,
    may_fail=MODEL + WORK,
).extra


@router.post("/v1/chat/completions", openapi_extra=_DESCRIBED)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events."""
    context = context_of(request)
    chat = await body_of(request, ChatRequest)
    model = await context.models.find(chat.model, adapter=chat.adapter, preset=chat.preset)
    id = f"chatcmpl-{uuid.uuid4().hex}"
    answer = _ChatCompletionAnswer(id, chat, model)
    choices = await while_connected(request.receive, ChatTurn(chat, model, request, id).start())
    if chat.stream:
        return sse.EventStream(answer.events(choices), context.keepalive_seconds, choices.headers)
    content = await while_connected(request.receive, answer.whole(choices))
    return JsonResponse(content, headers=choices.headers())


class _ChatCompletionAnswer:
    """Makes the JSON of one response. Closing the iterator of `events` closes the generation."""

    def __init__(self, id: str, asked: ChatRequest, model: ServedModel) -> None:
        self._chunk_fields: answers.ChatCompletionChunk = {
            "id": id,
            "created": int(time.time()),
            "model": asked.model,
            "service_tier": "default",  # all requests are of one tier
            "system_fingerprint": model.system_fingerprint,
            "object": "chat.completion.chunk",
            "choices": [],
        }
        if asked.with_usage:
            self._chunk_fields["usage"] = None
        self._with_logprobs = asked.logprobs
        self._custom_names = asked.custom_names
        self._delta_makers = [_DeltaMaker(self._custom_names) for _ in range(asked.n or 1)]

    async def whole(self, choices: Choices) -> answers.ChatCompletion:
        async with choices.generation as generation:
            whole_choices = [WholeChoice() for _ in range(generation.request.n)]
            async for delta in choices.deltas():
                whole_choices[delta.index].add(delta)
        return {
            **self._chunk_fields,
            "object": "chat.completion",
            "choices": [self._message_choice(i, choice) for i, choice in enumerate(whole_choices)],
            "usage": usage(choices.usage),
        }

    async def events(self, choices: Choices) -> AsyncGenerator[bytes, None]:
        """Yield the response as events, with token counts last if asked for."""
        async with choices.generation:
            # One for each choice that has begun; None where its chunks have more than a text.
            text_events: dict[int, sse.TextEvents | None] = {}
            async for delta in choices.deltas():
                texts = text_events.get(delta.index)
                if texts is not None and (text := delta.only_text) is not None:
                    yield texts.with_text(text)
                    continue
                chunk_choices = self._chunk_choices(delta)
                if delta.index not in text_events:
                    text_events[delta.index] = self._text_events(delta.index)
                    role: answers.ChatDelta = {"role": "assistant", "content": ""}
                    chunk_choices.insert(0, _chunk_choice(delta.index, role))
                if chunk_choices:
                    yield b"".join([sse.event(self._chunk(choice)) for choice in chunk_choices])
            if "usage" in self._chunk_fields:
                yield sse.event({**self._chunk_fields, "usage": usage(choices.usage)})
            yield sse.DONE

    def _chunk(self, choice: answers.ChatChunkChoice) -> answers.ChatCompletionChunk:
        return {**self._chunk_fields, "choices": [choice]}

    def _text_events(self, index: int) -> sse.TextEvents | None:
        """Return the chunks of a choice that have only text; None if all have log-probabilities."""
        if self._with_logprobs:
            return None
        return sse.TextEvents(self._chunk(_chunk_choice(index, {"content": ""})))

    def _message_choice(self, index: int, choice: WholeChoice) -> answers.ChatChoice:
        answer = assemble(choice.parts)
        message: answers.AssistantMessage = {
            "role": "assistant",
            # An answer of calls alone has null, not an empty text.
            "content": answer.text or (None if answer.calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if answer.calls:
            message["tool_calls"] = [self._message_call(call) for call in answer.calls]
        if answer.reasoning:  # by both names that clients read
            message["reasoning_content"] = message["reasoning"] = answer.reasoning
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish,
        }

    def _chunk_choices(self, delta: ChoiceDelta) -> list[answers.ChatChunkChoice]:
        maker, index = self._delta_makers[delta.index], delta.index
        chat_deltas = [made for part in delta.parts if (made := maker.delta(part))]
        if delta.tokens and not chat_deltas:
            chat_deltas = [{"content": ""}]  # it carries the log-probabilities
        choices = [_chunk_choice(index, chat_delta) for chat_delta in chat_deltas]
        if choices:
            choices[-1]["logprobs"] = self._logprobs(delta.tokens)
        if delta.finish:
            choices += [_chunk_choice(index, chat_delta) for chat_delta in maker.last_deltas()]
            choices.append(_chunk_choice(index, {}, delta.finish))
        return choices

    def _message_call(self, call: ToolCall) -> answers.MessageToolCall:
        if call.name in self._custom_names:
            custom: answers.CalledCustom = {"name": call.name, "input": input_of(call.arguments)}
            return {"id": call.id, "type": "custom", "custom": custom}
        function: answers.CalledFunction = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _logprobs(self, tokens: Iterable[LoggedToken]) -> answers.ChatLogprobs | None:
        return {"content": logprobs(tokens), "refusal": None} if self._with_logprobs else None


def _chunk_choice(
    index: int, delta: answers.ChatDelta, finish: Finish | None = None
) -> answers.ChatChunkChoice:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


class _DeltaMaker:
    """Makes the deltas of one choice. The input of a custom tool is read from JSON arguments."""

    def __init__(self, custom_names: frozenset[str]) -> None:
        self._custom_names = custom_names
        self._inputs: dict[int, InputReader] = {}  # by the index of the call

    def delta(self, part: Part) -> answers.ChatDelta | None:
        """Return the delta for a part; None if nothing is certain yet."""
        match part:
            case Text():
                return {"content": part.text}
            case Thought():
                return {"reasoning_content": part.text, "reasoning": part.text}
            case CallStart():
                return {"tool_calls": [self._call_opening(part)]}
            case Arguments():
                return self._arguments_delta(part)

    def _call_opening(self, part: CallStart) -> answers.ToolCallDelta:
        if part.name in self._custom_names:
            self._inputs[part.index] = InputReader()
            custom: answers.CustomDelta = {"name": part.name, "input": ""}
            return {"index": part.index, "id": part.id, "type": "custom", "custom": custom}
        function: answers.FunctionDelta = {"name": part.name, "arguments": ""}
        return {"index": part.index, "id": part.id, "type": "function", "function": function}

    def _arguments_delta(self, part: Arguments) -> answers.ChatDelta | None:
        reader = self._inputs.get(part.index)
        if reader is None:
            function: answers.FunctionDelta = {"arguments": part.fragment}
            return {"tool_calls": [{"index": part.index, "function": function}]}
        return _input_delta(part.index, reader.feed(part.fragment))

    def last_deltas(self) -> list[answers.ChatDelta]:
        """Return the deltas that the end of the answer makes certain."""
        inputs = (_input_delta(index, reader.finish()) for index, reader in self._inputs.items())
        return [delta for delta in inputs if delta]


def _input_delta(index: int, text: str) -> answers.ChatDelta | None:
    return {"tool_calls": [{"index": index, "custom": {"input": text}}]} if text else None
