"""The JSON of Ollama's answers, and streams of them line by line. asyncio thread."""

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from omlx_server import clock
from omlx_server.api.chat.choices import ChoiceDelta, TokenCounts, WholeChoice
from omlx_server.api.http.exchange import Exchange
from omlx_server.api.http.ollama_errors import envelope
from omlx_server.api.http.sse import EventStream
from omlx_server.api.ollama import answers
from omlx_server.api.openai.shapes import logprobs
from omlx_server.text.parts import Arguments, CallStart, Text, Thought, ToolCall, assemble

Json = dict[str, Any]
Calls = Sequence[answers.OllamaToolCall]


class JsonLineStream(EventStream):
    """An EventStream of JSON lines. `keepalive` is a line too, as clients parse each line."""

    media_type = "application/x-ndjson"

    def __init__(
        self,
        lines: AsyncGenerator[bytes, None],
        keepalive_seconds: float,
        keepalive: Mapping[str, Any],
        late_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        super().__init__(
            lines,
            keepalive_seconds,
            late_headers,
            on_error=lambda error: json_line(envelope(error)),
            keepalive=json_line(keepalive),
        )


def json_line(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"


def rfc3339(seconds: float | None = None) -> str:
    """Return a time in seconds since 1970 in Ollama's form; by default now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")


class AnswerBody(Protocol):
    """The part of an answer's JSON that differs between /api/chat and /api/generate."""

    def __call__(
        self, text: str, thinking: str = "", calls: Calls = (), *, ends: bool = False
    ) -> Json: ...


def message_body(text: str, thinking: str = "", calls: Calls = (), *, ends: bool = False) -> Json:
    message: answers.AnswerMessage = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = list(calls)
    return {"message": message}


def response_body(text: str, thinking: str = "", calls: Calls = (), *, ends: bool = False) -> Json:
    """Return the body of a line of /api/generate. Clients refuse an end without `context`."""
    body: Json = {"response": text}
    if thinking:
        body["thinking"] = thinking
    if ends:
        body["context"] = []
    return body


def load_answer(model: str, body: AnswerBody, reason: answers.DoneReason) -> Json:
    """Return the answer to a request that only loads or unloads a model."""
    return {**_head(model), **body(""), "done": True, "done_reason": reason}


class AnswerLines:
    """Makes one answer: its lines with `lines` for each delta, or all of it with `whole`."""

    def __init__(
        self,
        model: str,
        body: AnswerBody,
        exchange: Exchange,
        load_seconds: float,
        *,
        with_logprobs: bool,
    ) -> None:
        self._model = model
        self._body = body
        self._exchange = exchange
        self._load_seconds = load_seconds
        self._with_logprobs = with_logprobs
        self._open_call: CallStart | None = None
        self._open_arguments = ""
        self._call_count = 0

    def keepalive_line(self) -> Json:
        return {**_head(self._model), **self._body(""), "done": False}

    def lines(self, delta: ChoiceDelta, usage: TokenCounts) -> Iterator[Json]:
        """Yield the lines for a delta; the last one has `usage`."""
        text, thinking, ended_calls = self._split_parts(delta)
        calls = list(_complete_calls(ended_calls, self._call_count))
        self._call_count += len(calls)
        logs: Json = {}
        if self._with_logprobs and delta.tokens:
            logs["logprobs"] = logprobs(delta.tokens)
        if text or thinking or calls or logs:
            yield {**_head(self._model), **self._body(text, thinking, calls), "done": False, **logs}
        if delta.finish is not None:
            body = self._body("", ends=True)
            yield {**_head(self._model), **body, **self._end_fields(delta.finish, usage)}

    def whole(self, choice: WholeChoice, usage: TokenCounts) -> Json:
        answer = assemble(choice.parts)
        calls = list(_complete_calls(answer.calls))
        body = self._body(answer.text, answer.reasoning, calls, ends=True)
        line = {**_head(self._model), **body, **self._end_fields(choice.finish, usage)}
        if self._with_logprobs:
            line["logprobs"] = logprobs(choice.tokens)
        return line

    def _split_parts(self, delta: ChoiceDelta) -> tuple[str, str, list[ToolCall]]:
        """Return a delta's text, its reasoning, and the calls that end in it."""
        text = thinking = ""
        calls: list[ToolCall] = []
        for part in delta.parts:
            match part:
                case Text():
                    text += part.text
                case Thought():
                    thinking += part.text
                case CallStart():
                    calls += self._take_open_call()
                    self._open_call = part
                case Arguments():
                    self._open_arguments += part.fragment
        if delta.finish is not None:
            calls += self._take_open_call()
        return text, thinking, calls

    def _take_open_call(self) -> list[ToolCall]:
        start, arguments = self._open_call, self._open_arguments
        self._open_call, self._open_arguments = None, ""
        return [] if start is None else [ToolCall(start.id, start.name, arguments)]

    def _end_fields(self, finish: str, usage: TokenCounts) -> Json:
        """Return counts and times of an answer that ends now. The prompt's time is from the end of
        queueing to the first token."""
        now = clock.now()
        phases = self._exchange.phases[-1]
        prefill_began = phases.admitted or phases.queued
        first_token = phases.first or now
        last_token = phases.last or now
        return {
            "done": True,
            "done_reason": "length" if finish == "length" else "stop",
            "total_duration": nanoseconds(now - self._exchange.started),
            "load_duration": nanoseconds(self._load_seconds),
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": nanoseconds(first_token - prefill_began),
            "eval_count": usage.completion,
            "eval_duration": nanoseconds(last_token - first_token),
        }


def _head(model: str) -> answers.Head:
    return {"model": model, "created_at": rfc3339()}


def _complete_calls(calls: Iterable[ToolCall], start: int = 0) -> Iterator[answers.OllamaToolCall]:
    """Yield the calls whose arguments are an object, numbered from `start`. Arguments stay JSON
    text, as orjson refuses valid JSON such as 1e999."""
    index = start
    for call in calls:
        text = call.arguments or "{}"
        try:
            is_object = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            continue
        if is_object:
            arguments = orjson.Fragment(text)
            function = answers.MadeFunction(index=index, name=call.name, arguments=arguments)
            yield {"id": call.id, "function": function}
            index += 1


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1_000_000_000))
