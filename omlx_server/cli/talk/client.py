"""A small client of the chat API: one streamed answer at a time, with its times and counts.

What goes wrong becomes an `OmlxError` of one line. Blocking; used by `chat` and `quickstart`.
"""

import ipaddress
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import httpx

from omlx_server.cli.server_client.http import no_answer, no_url
from omlx_server.cli.server_client.unix import socket_of
from omlx_server.errors import OmlxError, UsageError

Message = Mapping[str, str]


class Listener(Protocol):
    """Is told each piece of an answer when it comes."""

    def text(self, piece: str) -> None: ...
    def thought(self, piece: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer. Times are seconds from the request to its first and last token, be they
    thoughts or text; `reasoning_tokens` are those of `completion_tokens` that were thoughts."""

    text: str
    first_token_at: float
    last_token_at: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0
    finish_reason: str = "stop"

    @property
    def tokens_per_second(self) -> float:
        """Of the decode alone: the first token belongs to the prefill."""
        spent = self.last_token_at - self.first_token_at
        return (self.completion_tokens - 1) / spent if spent > 0 else 0.0


class ChatClient:
    def __init__(self, url: str, api_key: str = "", *, is_own: bool = False) -> None:
        """`is_own`: the server of the settings, whatever its host."""
        path = socket_of(url)
        self.url = url if path else url.rstrip("/").removesuffix("/v1")
        self._base = "http://localhost" if path else self.url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(300, connect=5),
            trust_env=may_use_proxy(url, is_own=is_own),
            transport=httpx.HTTPTransport(uds=path) if path else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        try:
            return self._http.get(f"{self._base}/health/ready", timeout=5).is_success
        except httpx.TransportError:
            return False

    def models(self) -> list[str]:
        with self._explained():
            response = self._http.get(f"{self._base}/v1/models")
            _raise_for_error(response)
            return [str(model["id"]) for model in response.json()["data"]]

    def ask(
        self,
        model: str,
        messages: Sequence[Message],
        listener: Listener,
        **fields: float,
    ) -> Answer:
        """Send the talk, hand every piece of the answer to `listener` as it comes. `fields` are
        those of the request that say how to sample. Raises OmlxError when the server refuses, says
        within the answer that it failed, or breaks off."""
        body = {
            "model": model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        reading = _Reading(listener)
        with (
            self._explained(),
            self._http.stream("POST", f"{self._base}/v1/chat/completions", json=body) as response,
        ):
            if not response.is_success:
                response.read()
            _raise_for_error(response)
            for event in _events(response):
                reading.take(event)
        return reading.answer()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise no_answer(self.url) from None
        except httpx.InvalidURL:
            raise no_url(self.url) from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise OmlxError(f"the connection to {self.url} broke: {reason}") from None
        except (ValueError, KeyError, TypeError, AttributeError):  # JSON of another shape
            raise OmlxError(f"{self.url} does not answer as an OpenAI server does") from None


class _Reading:
    """What has come of one answer so far."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._sent_at = time.perf_counter()
        self._pieces: list[str] = []
        self._first_at = 0.0
        self._last_at = 0.0
        self._finish_reason = "stop"
        self._usage: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        if "error" in event:
            raise OmlxError(str(event["error"]["message"]))
        self._usage = event.get("usage") or self._usage
        for choice in event["choices"]:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self._hear(choice["delta"])

    def _hear(self, delta: Mapping[str, Any]) -> None:
        # Our server has a thought under both names; others have one of them.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        text = delta.get("content")
        if thought or text:
            self._last_at = time.perf_counter() - self._sent_at
            self._first_at = self._first_at or self._last_at
        if thought:
            self._listener.thought(thought)
        if text:
            self._pieces.append(text)
            self._listener.text(text)

    def answer(self) -> Answer:
        prompt = self._usage.get("prompt_tokens_details") or {}
        completion = self._usage.get("completion_tokens_details") or {}
        return Answer(
            text="".join(self._pieces),
            first_token_at=self._first_at,
            last_token_at=self._last_at,
            prompt_tokens=self._usage.get("prompt_tokens", 0),
            completion_tokens=self._usage.get("completion_tokens", 0),
            cached_tokens=prompt.get("cached_tokens") or 0,
            reasoning_tokens=completion.get("reasoning_tokens") or 0,
            finish_reason=self._finish_reason,
        )


def _events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    """The JSON of each `data:` line until [DONE].

    Lines end at \\n only: httpx's `iter_lines` also splits at U+2028, which JSON may hold raw.
    """
    rest = b""
    for chunk in response.iter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if data == b"[DONE]":
                return
            if line.startswith(b"data:"):
                yield json.loads(data)
    raise OmlxError("the server broke off in the middle of the answer")


def _raise_for_error(response: httpx.Response) -> None:
    if response.is_success:
        return
    if response.status_code == 401:
        raise UsageError("the server wants an API key", hint="give it: --api-key or OMLX_API_KEY")
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.reason_phrase
    raise OmlxError(f"{message} (HTTP {response.status_code})")


def _host_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # the port is no number, or the address in brackets no address
        valid = False
    if not valid or not parts.hostname:
        raise no_url(url)
    return parts.hostname


def may_use_proxy(url: str, *, is_own: bool) -> bool:
    """One that the environment sets for the web must not catch what goes to this machine, nor the
    key of our own server. Raises UsageError for what is no URL."""
    return not (socket_of(url) or _is_local(_host_of(url)) or is_own)


def _is_local(host: str) -> bool:
    """Whether it is this machine, which no proxy is asked for."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
