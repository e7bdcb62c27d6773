"""The server that is measured: streamed chat completions over HTTP, several at once."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import httpx

from omlx_server.cli.bench.pieces import Piece, events
from omlx_server.cli.bench.stream import Stream
from omlx_server.cli.bench.words import Message
from omlx_server.cli.server_client.http import no_answer
from omlx_server.cli.server_client.unix import socket_of
from omlx_server.cli.talk.client import may_use_proxy
from omlx_server.errors import OmlxError, UsageError

_TIMEOUT = httpx.Timeout(600, connect=5)
_TEXTS = ("content", "reasoning_content", "reasoning")
# Our own word, and vLLM's. A server that refuses it is asked without.
_ENDLESS = {"ignore_eos": True}
_TOO_LONG = ("context_length_exceeded", "maximum context length")


class TooLong(OmlxError):
    """The prompt is longer than the model's context."""


class Refused(OmlxError):
    """The server does not take the request as it is."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `cached` is None where the server doesn't tell."""

    stream: Stream
    prompt_tokens: int
    cached: int | None
    text: str


class Target:
    """One server and one of its models. Use it inside one event loop."""

    def __init__(self, url: str, model: str, key: str, *, is_own: bool = False) -> None:
        """`is_own`: the server of the settings, whatever its host."""
        self.url = url
        self.model = model
        self._extra: dict[str, Any] = dict(_ENDLESS)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        path = socket_of(url)
        self._base = "http://localhost" if path else url
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=_TIMEOUT,
            trust_env=may_use_proxy(url, is_own=is_own),
            transport=httpx.AsyncHTTPTransport(uds=path) if path else None,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._http.aclose()

    @property
    def endless(self) -> bool:
        """Whether answers are as long as they are asked to be."""
        return bool(self._extra)

    async def ask_first(self, messages: Sequence[Message], out: int) -> Reply:
        """As `ask`, and finds out what the server takes."""
        try:
            return await self.ask(messages, out)
        except Refused:
            self._extra = {}
            return await self.ask(messages, out)

    async def ask(self, messages: Sequence[Message], out: int) -> Reply:
        body = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": out,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        pieces: list[Piece] = []
        sent = time.perf_counter()
        async with self._asked(body) as response:
            async for piece in response.aiter_raw():
                pieces.append((time.perf_counter(), piece))
        try:
            return reply_of(sent, pieces)
        except (ValueError, KeyError, TypeError, AttributeError):  # JSON of another shape
            raise OmlxError(f"{self.url} does not answer as an OpenAI server does") from None

    @asynccontextmanager
    async def _asked(self, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        url = f"{self._base}/v1/chat/completions"
        try:
            async with self._http.stream("POST", url, json=body) as response:
                if not response.is_success:
                    await response.aread()
                    _refuse(response)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise no_answer(self.url) from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise OmlxError(f"the connection to {self.url} broke: {reason}") from None


def _refuse(response: httpx.Response) -> None:
    if response.status_code == 401:
        raise UsageError("the server wants an API key", hint="give it: --api-key or OMLX_API_KEY")
    message = f"{_message(response)} (HTTP {response.status_code})"
    if any(word in response.text for word in _TOO_LONG):
        raise TooLong(message)
    raise Refused(message) if response.status_code in (400, 422) else OmlxError(message)


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase


def reply_of(sent: float, pieces: Sequence[Piece]) -> Reply:
    """An answer without text, of control tokens alone, has come when it ended."""
    times: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    for at, event in events(pieces):
        if "error" in event:
            raise OmlxError(str(event["error"]["message"]))
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            if any(delta.get(name) for name in _TEXTS):
                times.append(at)
                texts.append(delta.get("content") or "")
    tokens = usage.get("completion_tokens") or len(times) or 1
    stream = Stream(sent, tuple(times or [pieces[-1][0] if pieces else sent]), tokens)
    details = usage.get("prompt_tokens_details") or {}
    return Reply(
        stream, usage.get("prompt_tokens", 0), details.get("cached_tokens"), "".join(texts)
    )
