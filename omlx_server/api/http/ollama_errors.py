"""Errors in Ollama's envelope, {"error": message}, and the paths whose errors have it. Pure."""

from typing_extensions import TypedDict

from omlx_server.errors import ModelNotFound, OmlxError, QueueFull

_BELOW = "/api/"
# Ollama answers 503 where its queue is full; a 429 is unknown there.
_BUSY = 503
# Clients look for these words before they offer to pull a model.
_NOT_FOUND = "model not found"


class OllamaError(TypedDict):
    """What went wrong."""

    error: str


def applies_to(path: str) -> bool:
    """Whether the errors of a request for `path` have Ollama's envelope."""
    return path.startswith(_BELOW)


def status(error: OmlxError) -> int:
    """The HTTP status for an error: 503 for a full queue, as with Ollama; else the error's own."""
    return _BUSY if isinstance(error, QueueFull) else error.status


def envelope(error: OmlxError) -> OllamaError:
    """The body of an error response, and the last line of a stream that has failed."""
    if error.code == ModelNotFound.code:
        return {"error": f"{_NOT_FOUND}: {error.message}"}
    return {"error": error.message}
