"""Errors in Anthropic's shape, by path."""

import asyncio
from typing import Any

import orjson
import pytest
from anthropic.types import ErrorResponse
from starlette.responses import Response

from omlx_server.api.http.errors import error_response
from omlx_server.errors import (
    BadRequest,
    ContextTooLong,
    DeadlineExceeded,
    Forbidden,
    InternalError,
    ModelNotFound,
    NotAuthorized,
    OmlxError,
    PayloadTooLarge,
    QueueFull,
    Unavailable,
)

ERRORS = [
    (BadRequest("x", param="y"), 400, "invalid_request_error"),
    (NotAuthorized("x"), 401, "authentication_error"),
    (Forbidden("x"), 403, "permission_error"),
    (ModelNotFound("x"), 404, "not_found_error"),
    (PayloadTooLarge("x"), 413, "request_too_large"),
    (QueueFull("x", retry_after=7), 429, "rate_limit_error"),
    (InternalError("x"), 500, "api_error"),
    (DeadlineExceeded("x"), 504, "timeout_error"),
    (Unavailable("x"), 529, "overloaded_error"),
]


def sent(answer: Response, path: str) -> tuple[int, dict[bytes, bytes], dict[str, Any]]:
    """Status, headers and body, as they go out."""
    messages: list[Any] = []

    async def run() -> None:
        async def receive() -> Any:
            raise AssertionError

        async def send(message: Any) -> None:
            messages.append(message)

        await answer({"type": "http", "path": path}, receive, send)

    asyncio.run(run())
    start, body = messages
    return start["status"], dict(start["headers"]), orjson.loads(body["body"])


@pytest.mark.parametrize(("error", "status", "kind"), ERRORS, ids=lambda value: str(value))
def test_each_class_has_its_status_and_kind(error: OmlxError, status: int, kind: str) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        found, headers, body = sent(error_response(error, path), path)
        told = {"type": kind, "message": "x"}
        assert (found, body) == (status, {"type": "error", "error": told, "request_id": None})
        assert int(headers[b"content-length"]) == len(orjson.dumps(body))
        if kind != "request_too_large":  # which the package does not know
            ErrorResponse.model_validate(body, strict=True)


@pytest.mark.parametrize(("error", "status", "kind"), ERRORS, ids=lambda value: str(value))
def test_other_paths_have_openais(error: OmlxError, status: int, kind: str) -> None:
    for path in ("/v1/messagesx", "/v1/chat/completions", "/", "/v1"):
        found, headers, body = sent(error_response(error, path), path)
        assert found == error.status
        assert body["error"]["param"] == error.param
        assert headers[b"content-type"] == b"application/json"


def test_headers_of_an_error_stay() -> None:
    for path in ("/v1/messages", "/v1/completions"):
        _, headers, _ = sent(
            error_response(QueueFull("x", retry_after=7), path, {"Allow": "POST"}), path
        )
        assert (headers[b"retry-after"], headers[b"allow"]) == (b"7", b"POST")


def test_a_prompt_that_is_too_long_is_said_in_words_that_clients_know() -> None:
    """Claude Code looks for the first, litellm for the second."""
    _, _, body = sent(error_response(ContextTooLong(10, 12), "/v1/messages"), "/v1/messages")
    message = body["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert "This model's maximum context length is 10 tokens" in message
