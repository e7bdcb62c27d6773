"""A small blocking client of the chat API: one streamed answer at a time, and the line below it."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import httpx

from omlx_server.cli.server_client.endpoint import connecting, http_options, reading_answer, refusal
from omlx_server.cli.server_client.http import ServerClient
from omlx_server.cli.shell.output import counted, harmless
from omlx_server.errors import OmlxError, UsageError

Message = Mapping[str, Any]
_JSON = {"Content-Type": "application/json"}
_LEAST_TIMED_TOKENS = 8  # fewer say nothing of the speed
_OWN_SERVER = "omlx_server"  # the owner of models that this program serves


class AnswerScreen(Protocol):
    """Shows an answer piece by piece."""

    def show_thought(self, piece: str) -> None: ...

    def show_text(self, piece: str) -> None: ...


class Stopped(KeyboardInterrupt):
    """The user pressed Ctrl-C within an answer, of which `text` had come."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


@dataclass(slots=True)
class TimedAnswer:
    """An answer, also while it comes. Times are seconds from the request. `reasoning_tokens` are
    part of `completion_tokens`. The server left out `dropped_messages`, as the context is full."""

    text: str = ""
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    thought_seconds: float = 0.0
    dropped_messages: int = 0
    finish_reason: str = "stop"

    @property
    def tokens_per_second(self) -> float:
        """The speed of decoding, without the first token; 0 for too few tokens."""
        seconds, tokens = self.last_token_at - self.first_token_at, self.completion_tokens - 1
        return tokens / seconds if seconds > 0 and tokens >= _LEAST_TIMED_TOKENS else 0.0

    def add_event(self, event: Mapping[str, Any], now: float) -> Iterator[tuple[str, str]]:
        """Add an event of the stream, which comes at `now`; yield its thoughts and texts."""
        if usage := event.get("usage"):
            prompt, completion = "prompt_tokens_details", "completion_tokens_details"
            self.prompt_tokens = _count_at(usage, "prompt_tokens")
            self.completion_tokens = _count_at(usage, "completion_tokens")
            self.cached_tokens = _count_at(usage, prompt, "cached_tokens")
            self.reasoning_tokens = _count_at(usage, completion, "reasoning_tokens")
            self.dropped_messages = _count_at(usage, prompt, "dropped_messages")
        for choice in event["choices"]:
            self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
            yield self._add_delta(choice["delta"], now)

    def _add_delta(self, delta: Mapping[str, Any], now: float) -> tuple[str, str]:
        # Our server has a thought under both names; others have one of them.
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        text = delta.get("content") or ""
        if not (isinstance(thought, str) and isinstance(text, str)):
            raise TypeError("a piece is no text")
        if thought or text:
            self.last_token_at = now
            self.first_token_at = self.first_token_at or now
        if thought:
            self.thought_seconds = now - self.first_token_at
        self.text += text
        return thought, text


class ChatClient:
    """A connection to one server, for chats."""

    def __init__(self, server: ServerClient) -> None:
        self.url = server.url
        timeout = httpx.Timeout(300, connect=5)
        self._http = httpx.Client(timeout=timeout, **http_options(server, httpx.HTTPTransport))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        try:
            return self._http.get("/health/ready", timeout=5).is_success
        except httpx.TransportError:
            return False

    def models(self) -> list[str]:
        return [str(row["id"]) for row in self._model_rows()]

    def names(self) -> list[list[str]]:
        """Return the names of each model; they share its `root`."""
        by_model: dict[str, list[str]] = {}
        for row in self._model_rows():
            name = str(row["id"])
            by_model.setdefault(str(row.get("root") or name), []).append(name)
        return list(by_model.values())

    def presets(self, model: str) -> list[str] | None:
        """Return a model's presets; None if the server does not tell. Raises OmlxError."""
        row = next((row for row in self._model_rows() if row["id"] == model), {})
        presets = row.get("presets")
        return [str(name) for name in presets] if isinstance(presets, list) else None

    def is_ours(self) -> bool:
        """Whether the server takes our own request fields."""
        try:
            return any(row.get("owned_by") == _OWN_SERVER for row in self._model_rows())
        except OmlxError:
            return False

    def _model_rows(self) -> list[Mapping[str, Any]]:
        with reading_answer(self.url):
            response = self._http.get("/v1/models")
            if not response.is_success:
                raise OmlxError(refusal(response))
            by_id = {str(row["id"]): row for row in response.json()["data"]}
            return list(by_id.values())

    def ask(
        self, model: str, messages: Sequence[Message], screen: AnswerScreen, **fields: object
    ) -> TimedAnswer:
        """Print the answer on `screen` as it comes. Raises OmlxError, and Stopped at Ctrl-C."""
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        answer, sent_at = TimedAnswer(), time.perf_counter()
        try:
            with connecting(self.url), self._send(body) as response:
                if not response.is_success:
                    response.read()
                    raise OmlxError(refusal(response))
                for thought, text in self._read_pieces(response, answer, sent_at):
                    if thought:
                        screen.show_thought(thought)
                    if text:
                        screen.show_text(text)
        except KeyboardInterrupt:
            raise Stopped(answer.text) from None
        return answer

    def _read_pieces(
        self, response: httpx.Response, answer: TimedAnswer, sent_at: float
    ) -> Iterator[tuple[str, str]]:
        with reading_answer(self.url):
            for event in _read_events(response):
                if "error" in event:
                    raise OmlxError(str(event["error"]["message"]))
                yield from answer.add_event(event, time.perf_counter() - sent_at)

    def _send(self, body: object) -> AbstractContextManager[httpx.Response]:
        """Send the body; a lone surrogate, which can't be encoded, becomes "?"."""
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return self._http.stream("POST", "/v1/chat/completions", content=data, headers=_JSON)


def served_models(client: ChatClient) -> list[str]:
    """Return the models' names. Raises UsageError if there are none, else OmlxError."""
    models = client.models()
    if not models:
        raise UsageError(f"{client.url} serves no model", hint="omlx-server serve MODEL")
    return models


def _count_at(usage: object, *path: str) -> int:
    value = usage
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else 0


def _read_events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON of each `data:` line until [DONE]. Raises OmlxError if it doesn't come."""
    # Not `iter_lines`, which splits at U+2028, too: JSON may hold it.
    unfinished_line = b""
    for chunk in response.iter_bytes():
        *lines, unfinished_line = (unfinished_line + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):
                yield json.loads(data)
    raise OmlxError("the server broke off in the middle of the answer")


def closing_lines(answer: TimedAnswer, advice: str = "") -> list[str]:
    """Return what is shown below an answer. `advice` is for one that reached the length limit."""
    lines = [_speed_line(answer)]
    if answer.finish_reason == "length":
        where = "" if answer.text else ", before it came to an answer"
        advice = f": {advice}" if advice else ""
        lines.insert(0, f"[cut at {counted(answer.completion_tokens, 'token')}{where}{advice}]")
    elif answer.finish_reason != "stop":
        lines.insert(0, f"[ended by the server: {harmless(answer.finish_reason)}]")
    return lines


def advice_on_length(answer: TimedAnswer, max_tokens: float | None) -> str:
    if max_tokens is not None and answer.completion_tokens >= max_tokens:
        return "--max-tokens raises it"
    if max_tokens is not None:
        return "the context is full"
    return "the context is full, or the server's own limit is reached, which --max-tokens overrides"


def _speed_line(answer: TimedAnswer) -> str:
    figures = [f"first token after {answer.first_token_at:.2f} s"]
    if answer.tokens_per_second:
        figures.append(f"{answer.tokens_per_second:.1f} tok/s")
    tokens = counted(answer.completion_tokens, "token")
    if answer.reasoning_tokens:
        thoughts = counted(answer.reasoning_tokens, "token")
        tokens += f" (thought for {thoughts}, {answer.thought_seconds:.1f} s)"
    figures += [tokens, f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens cached"]
    return f"[{', '.join(figures)}]"
