"""Errors in Anthropic's envelope: {"type": "error", "error": {type, message}, request_id}; and
which paths have it. Pure."""

from typing import Literal

from typing_extensions import TypedDict

from omlx_server.errors import ContextTooLong, OmlxError, Unavailable

REQUEST_ID = "request-id"
"""The header by which Anthropic's clients know a request again."""
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
# The kinds of Anthropic's API by its statuses. Clients choose by status, people read the kind.
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
# By these words Claude Code knows that it must make its conversation shorter.
_TOO_LONG = "prompt is too long"


class AnthropicErrorDetails(TypedDict):
    type: Kind
    message: str


class AnthropicError(TypedDict):
    """What went wrong. `request_id` is that of the header."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str | None


def applies_to(path: str) -> bool:
    """Whether what is asked for at `path` speaks this dialect."""
    return path == _PATH or path.startswith(f"{_PATH}/")


def status(error: OmlxError) -> int:
    """Anthropic has no 503. Its clients wait and come again on a 529."""
    return _OVERLOADED if isinstance(error, Unavailable) else error.status


def envelope(error: OmlxError, request_id: str | None) -> AnthropicError:
    """The body of an error response, and the `data:` of an error inside a stream. `request_id` is
    that of the header."""
    message = error.message
    if error.code == ContextTooLong.code:
        message = f"{_TOO_LONG}: {message}"
    return {
        "type": "error",
        "error": {"type": _kind(error.status), "message": message},
        "request_id": request_id,
    }


def _kind(status: int) -> Kind:
    return _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
