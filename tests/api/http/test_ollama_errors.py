"""Errors in Ollama's shape, by path."""

import orjson
import pytest

from omlx_server.api.http.errors import error_response
from omlx_server.errors import (
    BadRequest,
    Forbidden,
    InternalError,
    ModelNotFound,
    NotAuthorized,
    OmlxError,
    PayloadTooLarge,
    QueueFull,
    Unavailable,
)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (BadRequest("x", param="y"), 400, "x"),
        (NotAuthorized("x"), 401, "x"),
        (Forbidden("x"), 403, "x"),
        (ModelNotFound("x"), 404, "model not found: x"),
        (PayloadTooLarge("x"), 413, "x"),
        (QueueFull("x", retry_after=7), 503, "x"),
        (InternalError("x"), 500, "x"),
        (Unavailable("x"), 503, "x"),
    ],
    ids=lambda value: str(value),
)
def test_each_class_has_its_status_and_one_sentence(
    error: OmlxError, status: int, said: str
) -> None:
    told = error_response(error, "/api/chat")
    assert (told.status_code, orjson.loads(told.body)) == (status, {"error": said})
    assert told.headers.get("retry-after") == ("7" if isinstance(error, QueueFull) else None)


@pytest.mark.parametrize("path", ["/api", "/apis/chat", "/v1/api/chat", "/"])
def test_other_paths_have_openais_shape(path: str) -> None:
    assert set(orjson.loads(error_response(BadRequest("x"), path).body)["error"]) > {
        "message",
        "type",
    }
