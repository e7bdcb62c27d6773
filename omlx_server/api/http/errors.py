"""Every error leaves in OpenAI's envelope: {"error": {message, type, param, code}}; below
/v1/messages in Anthropic's (api/http/anthropic_errors.py).

Nothing of the input is echoed back: not in messages, not in validation details.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

import orjson
from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from omlx_server.api.http import anthropic_errors as anthropic
from omlx_server.api.http.exchange import failed, request_id
from omlx_server.errors import BadRequest, InternalError, OmlxError, QueueFull, Unavailable

_log = logging.getLogger(__name__)

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


class ErrorDetails(TypedDict):
    """`param` names the field that is wrong; `code` says more exactly what is."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """What went wrong."""

    error: ErrorDetails


def envelope(error: OmlxError) -> Error:
    """The body of an error response, and the `data:` of an error inside a stream."""
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


class ErrorResponse(Response):
    """An error as a plain HTTP response, in the dialect of the path that it answers."""

    media_type = "application/json"

    def __init__(self, error: OmlxError, headers: Mapping[str, str]) -> None:
        super().__init__(orjson.dumps(envelope(error)), error.status, headers)
        body = orjson.dumps(anthropic.envelope(error, request_id()))
        self._anthropic = Response(body, anthropic.status(error), headers, self.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if anthropic.applies_to(scope["path"]):
            await self._anthropic(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def response(error: OmlxError, headers: Mapping[str, str] | None = None) -> Response:
    """The response for an error, whatever was asked for."""
    failed(error)
    all_headers = dict(headers or {})
    if isinstance(error, QueueFull | Unavailable) and error.retry_after:
        all_headers["Retry-After"] = str(error.retry_after)
    return ErrorResponse(error, all_headers)


def from_validation(error: ValidationError, fields: frozenset[str]) -> BadRequest:
    """The first problem that pydantic found, as one sentence and the path of the field.

    The path holds names out of `fields` and indices only: pydantic puts keys that the client chose
    into it, and the branches of unions, which mean nothing to a client.
    """
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ".".join(str(p) for p in first["loc"] if isinstance(p, int) or p in fields)
    return BadRequest(f"{path or 'body'}: {first['msg']}", param=path or None)


def install(app: FastAPI, routes: Sequence[Route]) -> None:
    """Route every kind of failure through the envelope. `routes`: all of the app's."""
    app.add_exception_handler(OmlxError, _on_own)
    app.add_exception_handler(HTTPException, partial(_on_http, routes))
    app.add_exception_handler(Exception, _on_unexpected)


async def _on_own(_request: Request, error: Exception) -> Response:
    assert isinstance(error, OmlxError)
    return response(error)


async def _on_http(routes: Sequence[Route], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    shown = OmlxError(f"{error.detail}: {request.method} on this path")
    shown.status, shown.kind = error.status_code, "invalid_request_error"
    shown.code = _HTTP_CODES.get(error.status_code)
    if error.status_code != 405:
        return response(shown, error.headers)
    return response(shown, {"Allow": ", ".join(_methods(routes, request.scope["path"]))})


def _methods(routes: Sequence[Route], path: str) -> list[str]:
    """What may be done at a path. By itself starlette names the methods of its first route only."""
    exact = [route for route in routes if route.path == path]
    found = exact or [route for route in routes if route.path_regex.match(path)]
    return sorted({method for route in found for method in route.methods or ()})


async def _on_unexpected(_request: Request, error: Exception) -> Response:
    """The HTTP edge: whatever was not foreseen becomes a 500, and a traceback in the log."""
    _log.error("unexpected error", exc_info=error)
    return response(InternalError("internal error; the server's log has the details"))
