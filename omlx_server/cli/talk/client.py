"""A small blocking client of the chat API: one streamed answer at a time."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import httpx

from omlx_server.cli.server_client.endpoint import connecting, explained, options, refusal
from omlx_server.cli.server_client.http import ServerClient
from omlx_server.errors import OmlxError, UsageError

Message = Mapping[str, Any]
_JSON = {"Content-Type": "application/json"}
_OWNER = "omlx_server"  # of the models of this program's own server


class AnswerScreen(Protocol):
    def thought(self, piece: str) -> None: ...

    def text(self, piece: str) -> None: ...


class Stopped(KeyboardInterrupt):
    """The user pressed Ctrl-C within an answer, of which `text` had come."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """Times are seconds from the request. `reasoning_tokens` are part of `completion_tokens`.
    The server left out `dropped_messages`, as the context is full."""

    text: str
    first_token_at: float
    last_token_at: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0
    thought_seconds: float = 0.0
    dropped_messages: int = 0
    finish_reason: str = "stop"

    @property
    def tokens_per_second(self) -> float:
        """The speed of decoding, without the first token; 0 if it can't be measured."""
        seconds = self.last_token_at - self.first_token_at
        return max(0, self.completion_tokens - 1) / seconds if seconds > 0 else 0.0


class ChatClient:
    def __init__(self, server: ServerClient) -> None:
        self.url = server.url
        timeout = httpx.Timeout(300, connect=5)
        self._http = httpx.Client(timeout=timeout, **options(server, httpx.HTTPTransport))

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
        return [str(row["id"]) for row in self._listed()]

    def names(self) -> list[list[str]]:
        by_model: dict[str, list[str]] = {}
        for row in self._listed():
            name = str(row["id"])
            by_model.setdefault(str(row.get("root") or name), []).append(name)
        return list(by_model.values())

    def presets(self, model: str) -> list[str] | None:
        """Return a model's presets; None if the server does not tell. Raises OmlxError."""
        row = next((row for row in self._listed() if row["id"] == model), {})
        presets = row.get("presets")
        return [str(name) for name in presets] if isinstance(presets, list) else None

    def is_ours(self) -> bool:
        """Whether the server takes our own request fields."""
        try:
            return any(row.get("owned_by") == _OWNER for row in self._listed())
        except OmlxError:
            return False

    def _listed(self) -> list[Mapping[str, Any]]:
        with explained(self.url):
            response = self._http.get("/v1/models")
            if not response.is_success:
                raise OmlxError(refusal(response))
            by_id = {str(row["id"]): row for row in response.json()["data"]}
            return list(by_id.values())

    def ask(
        self,
        model: str,
        messages: Sequence[Message],
        screen: AnswerScreen,
        **fields: float | str,
    ) -> TimedAnswer:
        """Print the answer on `screen` as it comes. `fields` are further fields of the request.
        Raises OmlxError, and Stopped at Ctrl-C."""
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        reading = _Reading()
        try:
            with connecting(self.url), self._sent(body) as response:
                if not response.is_success:
                    response.read()
                    raise OmlxError(refusal(response))
                for thought, text in reading.pieces(self.url, response):
                    if thought:
                        screen.thought(thought)
                    if text:
                        screen.text(text)
        except KeyboardInterrupt:
            raise Stopped(reading.text) from None
        return reading.answer()

    def _sent(self, body: object) -> AbstractContextManager[httpx.Response]:
        """Send the body; a lone surrogate, which can't be encoded, becomes "?"."""
        data = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return self._http.stream("POST", "/v1/chat/completions", content=data, headers=_JSON)


def served_by(client: ChatClient) -> list[str]:
    """Return the models' names. Raises UsageError if there are none, else OmlxError."""
    if not (models := client.models()):
        raise UsageError(f"{client.url} serves no model", hint="omlx-server serve MODEL")
    return models


class _Reading:
    def __init__(self) -> None:
        self._sent_at = time.perf_counter()
        self._pieces: list[str] = []
        self._first_at = 0.0
        self._thought_at = 0.0
        self._last_at = 0.0
        self._finish_reason = "stop"
        self._usage: object = None

    def pieces(self, url: str, response: httpx.Response) -> Iterator[tuple[str, str]]:
        with explained(url):
            for event in _events(response):
                if "error" in event:
                    raise OmlxError(str(event["error"]["message"]))
                self._usage = event.get("usage") or self._usage
                for choice in event["choices"]:
                    self._finish_reason = str(choice.get("finish_reason") or self._finish_reason)
                    yield self._piece(choice["delta"])

    def _piece(self, delta: Mapping[str, Any]) -> tuple[str, str]:
        # Our server has a thought under both names; others have one of them.
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        text = delta.get("content") or ""
        if not (isinstance(thought, str) and isinstance(text, str)):
            raise TypeError("a piece is no text")
        if thought or text:
            self._last_at = time.perf_counter() - self._sent_at
            self._first_at = self._first_at or self._last_at
        if thought:
            self._thought_at = self._last_at
        self._pieces.append(text)
        return thought, text

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def answer(self) -> TimedAnswer:
        prompt, completion = "prompt_tokens_details", "completion_tokens_details"
        return TimedAnswer(
            text=self.text,
            first_token_at=self._first_at,
            last_token_at=self._last_at,
            prompt_tokens=_count(self._usage, "prompt_tokens"),
            completion_tokens=_count(self._usage, "completion_tokens"),
            cached_tokens=_count(self._usage, prompt, "cached_tokens"),
            reasoning_tokens=_count(self._usage, completion, "reasoning_tokens"),
            thought_seconds=max(0.0, self._thought_at - self._first_at),
            dropped_messages=_count(self._usage, prompt, "dropped_messages"),
            finish_reason=self._finish_reason,
        )


def _count(usage: object, *path: str) -> int:
    for name in path:
        usage = usage.get(name) if isinstance(usage, Mapping) else None
    return usage if isinstance(usage, int) else 0


def _events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    r"""Yield the JSON of each `data:` line until [DONE]. Raises OmlxError if the stream ends
    before. Lines end at \n only: httpx's `iter_lines` also splits at U+2028, which JSON may
    hold."""
    line_start = b""
    for chunk in response.iter_bytes():
        *lines, line_start = (line_start + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):
                yield json.loads(data)
    raise OmlxError("the server broke off in the middle of the answer")
