"""The JSON of Ollama's answers, and streams of them line by line. asyncio thread."""

import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from omlx_server.api.chat.choices import ChoiceDelta, TokenCounts, WholeChoice
from omlx_server.api.http.exchange import Exchange
from omlx_server.api.http.ollama_errors import envelope
from omlx_server.api.http.sse import EventStream
from omlx_server.api.ollama import answers
from omlx_server.api.openai.shapes import logprobs
from omlx_server.text.parts import Arguments, CallStart, Text, Thought, ToolCall, assemble

Json = dict[str, Any]
Calls = Sequence[answers.OllamaToolCall]

_NANO = 1_000_000_000


class JsonLineStream(EventStream):
    """An EventStream of JSON lines. `keepalive` is a line without news, as clients parse each
    line."""

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
            on_error=lambda error: line(envelope(error)),
            keepalive=line(keepalive),
        )


def line(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value) + b"\n"


def rfc3339(seconds: float | None = None) -> str:
    """Return a time in seconds since 1970 in Ollama's form; by default now."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")


class AnswerShape(Protocol):
    """The part of an answer's JSON that differs between /api/chat and /api/generate."""

    def __call__(
        self, text: str, thinking: str = "", calls: Calls = (), *, ends: bool = False
    ) -> Json: ...


def message_body(text: str, thinking: str = "", calls: Calls = (), *, ends: bool = False) -> Json:
    """Return the body of a line of /api/chat."""
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


def loaded(model: str, body: AnswerShape, reason: answers.DoneReason) -> Json:
    return {**_head(model), **body(""), "done": True, "done_reason": reason}


class AnswerShapes:
    """Makes the lines of one answer: call `lines` for each delta."""

    def __init__(
        self,
        model: str,
        body: AnswerShape,
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
        self._open: CallStart | None = None
        self._arguments = ""
        self._calls = 0

    def nothing(self) -> Json:
        return {**_head(self._model), **self._body(""), "done": False}

    def lines(self, delta: ChoiceDelta, usage: TokenCounts) -> Iterator[Json]:
        """Yield the lines for a delta; the last one has `usage`."""
        text, thinking, ended = self._collect(delta)
        calls = list(_whole_calls(ended, self._calls))
        self._calls += len(calls)
        more: Json = {}
        if self._with_logprobs and delta.tokens:
            more["logprobs"] = logprobs(delta.tokens)
        if text or thinking or calls or more:
            yield {**_head(self._model), **self._body(text, thinking, calls), "done": False, **more}
        if delta.finish is not None:
            body = self._body("", ends=True)
            yield {**_head(self._model), **body, **self._end(delta.finish, usage)}

    def whole(self, choice: WholeChoice, usage: TokenCounts) -> Json:
        answer = assemble(choice.parts)
        calls = list(_whole_calls(answer.calls))
        body = self._body(answer.text, answer.reasoning, calls, ends=True)
        shape = {**_head(self._model), **body, **self._end(choice.finish, usage)}
        if self._with_logprobs:
            shape["logprobs"] = logprobs(choice.tokens)
        return shape

    def _collect(self, delta: ChoiceDelta) -> tuple[str, str, list[ToolCall]]:
        text = thinking = ""
        calls: list[ToolCall] = []
        for part in delta.parts:
            match part:
                case Text():
                    text += part.text
                case Thought():
                    thinking += part.text
                case CallStart():
                    calls += self._close_call()
                    self._open = part
                case Arguments():
                    self._arguments += part.fragment
        if delta.finish is not None:
            calls += self._close_call()
        return text, thinking, calls

    def _close_call(self) -> list[ToolCall]:
        start, arguments = self._open, self._arguments
        self._open, self._arguments = None, ""
        return [] if start is None else [ToolCall(start.id, start.name, arguments)]

    def _end(self, finish: str, usage: TokenCounts) -> Json:
        reason = "length" if finish == "length" else "stop"
        return {"done": True, "done_reason": reason, **self._counts(usage)}

    def _counts(self, usage: TokenCounts) -> answers.Counts:
        """Return counts and times of an answer that ends now. The prompt's time is from the end of
        queueing to the first token."""
        exchange, now = self._exchange, time.monotonic()
        phases = exchange.phases[-1]
        first = phases.first or now
        return {
            "total_duration": nanoseconds(now - exchange.started),
            "load_duration": nanoseconds(self._load_seconds),
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": nanoseconds(first - (phases.admitted or phases.queued)),
            "eval_count": usage.completion,
            "eval_duration": nanoseconds((phases.last or now) - first),
        }


def _head(model: str) -> answers.Head:
    return {"model": model, "created_at": rfc3339()}


def _whole_calls(calls: Iterable[ToolCall], first: int = 0) -> Iterator[answers.OllamaToolCall]:
    """Yield the calls that have whole arguments, with indices from `first`. Arguments stay JSON
    text, as orjson refuses valid JSON such as 1e999."""
    index = first
    for call in calls:
        text = call.arguments or "{}"
        try:
            is_whole = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            continue
        if is_whole:
            yield {
                "id": call.id,
                "function": {"index": index, "name": call.name, "arguments": orjson.Fragment(text)},
            }
            index += 1


def nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NANO))
