"""Errors in Ollama's envelope, and the paths that use it."""

from typing_extensions import TypedDict

from omlx_server.errors import ModelNotFound, OmlxError, QueueFull

_PREFIX = "/api/"
# Ollama answers 503 where its queue is full; a 429 is unknown there.
_BUSY = 503
# Clients look for these words before they offer to pull a model.
_NOT_FOUND = "model not found"


class OllamaError(TypedDict):
    """An error."""

    error: str


def applies_to(path: str) -> bool:
    return path.startswith(_PREFIX)


def status(error: OmlxError) -> int:
    """Return the HTTP status: 503 for a full queue, as with Ollama."""
    return _BUSY if isinstance(error, QueueFull) else error.status


def envelope(error: OmlxError) -> OllamaError:
    if error.code == ModelNotFound.code:
        return {"error": f"{_NOT_FOUND}: {error.message}"}
    return {"error": error.message}
