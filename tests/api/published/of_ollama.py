"""What answers of Ollama's routes are held to: the types of the ollama package. These ignore fields
that they do not know, so the names of all fields are looked at as well."""

from collections.abc import Iterator
from typing import Any

import orjson
from ollama import (
    ChatResponse,
    EmbeddingsResponse,
    EmbedResponse,
    GenerateResponse,
    ListResponse,
    ProcessResponse,
    ProgressResponse,
    ShowResponse,
)
from pydantic import BaseModel

Json = dict[str, Any]

KINDS: dict[str, type[BaseModel]] = {
    "/api/chat": ChatResponse,
    "/api/generate": GenerateResponse,
    "/api/embed": EmbedResponse,
    "/api/embeddings": EmbeddingsResponse,
    "/api/tags": ListResponse,
    "/api/ps": ProcessResponse,
    "/api/show": ShowResponse,
    "/api/pull": ProgressResponse,
}
# Ollama sends these, and its package lacks them.
_LACKING = {
    *(".models[].name", ".logprobs[].bytes", ".logprobs[].top_logprobs[].bytes"),
    *(".message.tool_calls[].id", ".message.tool_calls[].function.index"),
}


def judge(path: str, data: Json) -> None:
    """Raises AssertionError or ValidationError where an answer, or a line of one, is wrong."""
    if path == "/api/version":
        assert list(data) == ["version"]
        return
    if set(data) == {"error"}:
        error(data)
        return
    found = KINDS[path].model_validate_json(orjson.dumps(data))
    told = found.model_dump(mode="json", by_alias=True, exclude_unset=True)
    unknown = set(_names(data)) - set(_names(told)) - _LACKING
    assert not unknown, f"fields that the package does not have: {sorted(unknown)}"


def error(data: Json) -> None:
    """Raises AssertionError for what is no error of Ollama's."""
    assert set(data) == {"error"} and isinstance(data["error"], str) and data["error"]


def _names(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{at}.{name}"
            yield from _names(inner, f"{at}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner, f"{at}[]")
