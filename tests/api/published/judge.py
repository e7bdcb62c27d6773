"""Real answers against what is published of their routes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import httpx
import orjson

from tests.api.published import of_ollama, shapes

Json = dict[str, Any]
Shape = Callable[[Json], object]

# Method and path, what a whole answer is held to, and what an event of a stream.
_RULES: tuple[tuple[str, Shape | None, Shape | None], ...] = (
    ("POST /v1/chat/completions", shapes.chat, shapes.chat_chunk),
    ("POST /v1/completions", shapes.completion, shapes.completion),
    ("POST /v1/embeddings", shapes.embeddings, None),
    ("GET /v1/models", shapes.models, None),
    ("GET /v1/models/.+", shapes.model, None),
    ("POST /v1/messages", shapes.message, shapes.message_event),
    ("POST /v1/messages/count_tokens", shapes.counted, None),
    ("POST /v1/responses", shapes.response, shapes.response_event),
    ("POST /v1/responses/compact", shapes.compaction, None),
    ("POST /v1/responses/input_tokens", shapes.input_tokens, None),
    ("GET /v1/responses/[^/]+", shapes.response, None),
    ("GET /v1/responses/[^/]+/input_items", shapes.item_list, None),
    # Nothing cancels anything here: a refusal. The package's delete gives nothing.
    ("POST /v1/responses/[^/]+/cancel", None, None),
    ("DELETE /v1/responses/[^/]+", None, None),
)
_OLLAMA = re.compile("/api/.+")
# Of nobody who publishes types: our own, vLLM's, llama.cpp's, and rerankers'.
_OWN = re.compile(
    r"/(health.*|version|metrics|openapi\.json|docs.*|admin/.*|web/.*|(v[12]/)?rerank|tokenize|detokenize"
    r"|reset_prefix_cache|v1/cache/.*|progress/.*|sign-in)?"
)


def rule_of(method: str, path: str) -> tuple[Shape | None, Shape | None]:
    """Raises AssertionError for a route that nobody has said anything of."""
    asked = f"{method} {path}"
    for pattern, whole, event in _RULES:
        if re.fullmatch(pattern, asked):
            return whole, event
    if _OLLAMA.fullmatch(path):
        return (partial(of_ollama.judge, path),) * 2
    assert _OWN.fullmatch(path), f"say in _RULES what {asked} is held to"
    return None, None


def judge(response: httpx.Response) -> None:
    """Raises where an answer is not what is published of it."""
    path = unquote(response.request.url.path)
    media = response.headers.get("content-type", "").partition(";")[0]
    if response.status_code >= 400:
        if media == "application/json" and not path.startswith("/health"):
            _judge_error(response.json(), path)
        return
    whole, event = rule_of(response.request.method, path)
    if media == "application/x-ndjson":
        assert event is not None
        for line in response.text.splitlines():
            event(orjson.loads(line))
    elif media == "text/event-stream" and not _OWN.fullmatch(path):
        assert event is not None
        for data in _events(response.text):
            _judge_event(data, event)
    elif whole is not None:
        whole(response.json())


def _judge_event(data: Json, event: Shape) -> None:
    """An OpenAI stream that breaks off ends with the body of an error."""
    if set(data) == {"error"}:
        shapes.openai_error(data)
    else:
        event(data)


def _judge_error(data: Json, path: str) -> None:
    """Whoever sent no whole request is answered in OpenAI's form, whatever was asked for."""
    if path.startswith("/v1/messages") and data.get("type") == "error":
        shapes.anthropic_error(data)
    elif _OLLAMA.fullmatch(path) and isinstance(data.get("error"), str):
        of_ollama.error(data)
    else:
        shapes.openai_error(data)


def _events(text: str) -> list[Json]:
    lines = (line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: "))
    return [orjson.loads(line) for line in lines if line != "[DONE]"]
