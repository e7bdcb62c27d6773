"""A client of the measured server: streamed chat completions, and when their tokens came."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import httpx

from omlx_server.cli.bench.words import Message
from omlx_server.cli.server_client.endpoint import http_options, reading_answer, refusal
from omlx_server.cli.server_client.http import ServerClient
from omlx_server.errors import OmlxError

Piece = tuple[float, bytes]
"""The time at which bytes came, and the bytes."""
_TIMEOUT = httpx.Timeout(600, connect=5)
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")
# Let an answer reach its most tokens: a field of our API and vLLM's, which others may refuse.
_ENDLESS = {"ignore_eos": True}
_TOO_LONG_ERRORS = ("context_length_exceeded", "maximum context length")


@dataclass(frozen=True, slots=True)
class Stream:
    """One answer. `times`, in seconds, are of events with text. Raises ValueError without any."""

    sent: float
    times: tuple[float, ...]
    tokens: int

    def __post_init__(self) -> None:
        if not self.times or self.tokens < 1:
            raise ValueError("an answer without a token has no times to measure")

    @property
    def first(self) -> float:
        return self.times[0]

    @property
    def last(self) -> float:
        return self.times[-1]

    @property
    def ttft(self) -> float:
        return self.first - self.sent

    def tokens_between(self, start: float, end: float) -> float:
        # An event may carry several tokens: each counts as their mean number.
        events = sum(start < time <= end for time in self.times)
        return events * self.tokens / len(self.times)


def decode_rate(streams: Sequence[Stream]) -> float | None:
    """Return the tokens per second of all streams together while all decode; None if never."""
    start = max(stream.first for stream in streams)
    end = min(stream.last for stream in streams)
    tokens = sum(stream.tokens_between(start, end) for stream in streams)
    return tokens / (end - start) if end > start and tokens else None


def events(pieces: Iterable[Piece]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the time and JSON of each `data:` line but [DONE]. Raises ValueError for others."""
    unfinished_line = b""
    for at, piece in pieces:
        *lines, unfinished_line = (unfinished_line + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield at, json.loads(data)


class BenchPromptTooLong(OmlxError):
    """The prompt does not fit into the model's context."""


class BenchRefusal(OmlxError):
    """The server refuses a field: HTTP 400 or 422."""


@dataclass(frozen=True, slots=True)
class BenchReply:
    """An answer. `prompt_tokens` is 0, `cached` and `drafted` are None if the server tells none."""

    stream: Stream
    prompt_tokens: int
    cached: int | None
    text: str
    drafted: int | None = None


class BenchTarget:
    """A client for one model of one server, within one event loop."""

    def __init__(self, server: ServerClient, model: str) -> None:
        self._url = server.url
        self._model = model
        self._extra_fields: dict[str, Any] = dict(_ENDLESS)
        options = http_options(server, httpx.AsyncHTTPTransport)
        self._http = httpx.AsyncClient(timeout=_TIMEOUT, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    @property
    def takes_ignore_eos(self) -> bool:
        return bool(self._extra_fields)

    async def ask_first(self, messages: Sequence[Message], most_tokens: int) -> BenchReply:
        """Ask; leave `ignore_eos` out from now on if the server refuses it."""
        try:
            return await self.ask(messages, most_tokens)
        except BenchRefusal:
            self._extra_fields = {}
            return await self.ask(messages, most_tokens)

    async def ask(self, messages: Sequence[Message], most_tokens: int) -> BenchReply:
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": most_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra_fields,
        }
        pieces: list[Piece] = []
        sent = time.perf_counter()
        with reading_answer(self._url):
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if not response.is_success:
                    await response.aread()
                    raise _refusal_error(response)
                async for piece in response.aiter_raw():
                    pieces.append((time.perf_counter(), piece))
            return reply_of(sent, pieces)


def _refusal_error(response: httpx.Response) -> OmlxError:
    message = refusal(response)
    if any(word in response.text for word in _TOO_LONG_ERRORS):
        return BenchPromptTooLong(message)
    return BenchRefusal(message) if response.status_code in (400, 422) else OmlxError(message)


def reply_of(sent: float, pieces: Sequence[Piece]) -> BenchReply:
    """Return the answer of a stream. Raises OmlxError if the stream reports an error."""
    times: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    for at, event in events(pieces):
        if "error" in event:
            raise OmlxError(str(event["error"]["message"]))
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            if any(delta.get(name) for name in _TEXT_FIELDS):
                times.append(at)
                texts.append(delta.get("content") or "")
    tokens = usage.get("completion_tokens") or len(times) or 1
    if not times:  # an answer without text counts as one token at its end
        times = [pieces[-1][0] if pieces else sent]
    stream = Stream(sent, tuple(times), tokens)
    in_prompt = usage.get("prompt_tokens_details") or {}
    in_completion = usage.get("completion_tokens_details") or {}
    return BenchReply(
        stream,
        usage.get("prompt_tokens", 0),
        in_prompt.get("cached_tokens"),
        "".join(texts),
        in_completion.get("accepted_prediction_tokens"),
    )
