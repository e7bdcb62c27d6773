"""Errors in Anthropic's envelope, and the paths that use it."""

from typing import Literal

from typing_extensions import TypedDict

from omlx_server.errors import ContextTooLong, OmlxError, Unavailable

REQUEST_ID = "request-id"
"""The response header in which Anthropic's clients look for the request's id."""
_PATH = "/v1/messages"
Kind = Literal[
    "api_error",
    "authentication_error",
    "invalid_request_error",
    "not_found_error",
    "overloaded_error",
    "permission_error",
    "rate_limit_error",
    "request_too_large",
    "timeout_error",
]
# Anthropic's kind of error for each status. Clients decide by the status; the kind is for people.
_KINDS: dict[int, Kind] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OVERLOADED = 529
# Claude Code looks for these words, and then makes its conversation shorter.
_TOO_LONG = "prompt is too long"


class AnthropicErrorDetails(TypedDict):
    type: Kind
    message: str


class AnthropicError(TypedDict):
    """An error. `request_id` is that of the header."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str | None


def applies_to(path: str) -> bool:
    return path == _PATH or path.startswith(f"{_PATH}/")


def status(error: OmlxError) -> int:
    """Return the HTTP status: 529 for Unavailable, which Anthropic's clients try again."""
    return _OVERLOADED if isinstance(error, Unavailable) else error.status


def envelope(error: OmlxError, request_id: str | None) -> AnthropicError:
    message = error.message
    if error.code == ContextTooLong.code:
        message = f"{_TOO_LONG}: {message}"
    usual: Kind = "api_error" if error.status >= 500 else "invalid_request_error"
    return {
        "type": "error",
        "error": {"type": _KINDS.get(error.status, usual), "message": message},
        "request_id": request_id,
    }
