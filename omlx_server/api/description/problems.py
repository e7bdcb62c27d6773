"""The error responses of a route. 408 and 431 precede the route, so they have OpenAI's envelope."""

from typing import Any

from omlx_server.api.description.operation import Operation
from omlx_server.api.http import anthropic_errors as anthropic
from omlx_server.api.http import ollama_errors as ollama
from omlx_server.api.http.anthropic_errors import AnthropicError
from omlx_server.api.http.errors import Error
from omlx_server.api.http.ollama_errors import OllamaError

_TEXTS = {
    400: "The request is wrong.",
    401: "No key, or a wrong one.",
    403: "This Host or Origin is not allowed.",
    404: "What the request names is not there.",
    408: "The request did not come to its end in time.",
    409: "Not now: what the request names is in use.",
    413: "The body is too long.",
    415: "The body has another media type, or a coding that is not known here.",
    429: "Too many requests are waiting. `Retry-After` says when to come again.",
    431: "The request line and headers are too long.",
    500: "The request failed inside the server.",
    503: "The server is not ready, is shutting down, or has too little memory for the request.",
    504: "The request ran out of its time.",
    529: "The server is not ready, is shutting down, or has too little memory for the request.",
}
_ALWAYS = (400, 403, 408, 431, 500)
_EARLY = (408, 431)
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}


KINDS: tuple[Any, ...] = (
    Error,
    AnthropicError,
    Error | AnthropicError,
    OllamaError,
    Error | OllamaError,
)


def statuses(operation: Operation, method: str, path: str) -> list[int]:
    codes = {*_ALWAYS, *operation.may_fail}
    codes |= set() if operation.is_open else {401}
    if method in ("POST", "PATCH"):
        codes |= {415} if operation.body is None else {413, 415}
    if operation.sick is not None:
        codes.discard(503)
    if anthropic.applies_to(path) and 503 in codes:
        codes = codes - {503} | {529}
    if ollama.applies_to(path) and 429 in codes:
        codes = codes - {429} | {503}
    return sorted(codes)


def shared(status: int, path: str) -> tuple[str, Any]:
    """Return the name of the shared response for `status`, and its body's type."""
    if status not in _EARLY and ollama.applies_to(path):
        # A 400 for something other than HTTP precedes the path.
        return f"OllamaError{status}", Error | OllamaError if status == 400 else OllamaError
    if not anthropic.applies_to(path) or status in _EARLY:
        return f"Error{status}", Error
    kind = Error | AnthropicError if status == 400 else AnthropicError
    return f"AnthropicError{status}", kind


def response(status: int, content: dict[str, Any]) -> dict[str, Any]:
    shape: dict[str, Any] = {"description": _TEXTS[status], "content": content}
    return {**shape, "headers": _RETRY_AFTER} if status == 429 else shape
