"""Put every error into the envelope of its API; none repeats values of the client."""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from typing_extensions import TypedDict

from omlx_server.api.http import anthropic_errors as anthropic
from omlx_server.api.http import ollama_errors as ollama
from omlx_server.api.http.exchange import note_failure, path_of, request_id, routes_at
from omlx_server.api.http.json import JsonResponse
from omlx_server.errors import BadRequest, InternalError, NotNow, OmlxError

_log = logging.getLogger(__name__)

_CODES = {404: "not_found", 405: "method_not_allowed"}


class ErrorDetails(TypedDict):
    """`param` names the field that is wrong; `code` says more exactly what is."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """An error."""

    error: ErrorDetails


def envelope(error: OmlxError) -> Error:
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(
    error: OmlxError, path: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response for an error in the envelope of `path`; the exchange notes it."""
    note_failure(error)
    all_headers = dict(headers or {})
    if isinstance(error, NotNow) and error.retry_after:
        all_headers["Retry-After"] = str(error.retry_after)
    if anthropic.applies_to(path):
        body = anthropic.envelope(error, request_id())
        return JsonResponse(body, anthropic.status(error), all_headers)
    if ollama.applies_to(path):
        return JsonResponse(ollama.envelope(error), ollama.status(error), all_headers)
    return JsonResponse(envelope(error), error.status, all_headers)


# An unknown tag of a union is the client's own text.
_UNKNOWN_TAG = re.compile(r"\AInput tag '.*'(?= found using)", re.DOTALL)


def bad_request_of(error: ValidationError, fields: frozenset[str]) -> BadRequest:
    """Return the first field's problem as one sentence with its path. Of a union pydantic reports
    every branch: the one of the right type that got deepest counts. The path has only names in
    `fields` and indices: other keys are the client's own."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    paths = [
        [str(key) for key in problem["loc"] if isinstance(key, int) or key in fields]
        for problem in problems
    ]
    of_first_field = [n for n, path in enumerate(paths) if path[:1] == paths[0][:1]]
    best = max(
        of_first_field, key=lambda n: (_is_of_right_type(problems[n]["type"]), len(paths[n]))
    )
    path, problem = ".".join(paths[best]), problems[best]
    # Where a list stops at its first fault, pydantic counts its items wrongly.
    message = _UNKNOWN_TAG.sub("Input tag", problem["msg"].partition(" after validation")[0])
    bad_request = BadRequest(f"{path or 'body'}: {message}", param=path or None)
    bad_request.reason = problem["type"]
    return bad_request


def _is_of_right_type(problem: str) -> bool:
    return not (problem.endswith("_type") or problem in ("missing", "literal_error"))


def install(app: FastAPI, routes: Sequence[Route]) -> None:
    """Install handlers that answer every exception with an envelope."""
    app.add_exception_handler(OmlxError, _on_omlx_error)
    app.add_exception_handler(HTTPException, partial(_on_http_error, routes))
    app.add_exception_handler(Exception, _on_unexpected)


async def _on_omlx_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OmlxError)
    return error_response(error, request.scope["path"])


async def _on_http_error(routes: Sequence[Route], request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    near = _route_hint(routes, path) if error.status_code == 404 else ""
    shown = OmlxError(f"{error.detail}: {request.method} {path_of(request.scope)}{near}")
    shown.status, shown.kind = error.status_code, "invalid_request_error"
    shown.code = _CODES.get(error.status_code)
    shown.reason = ""  # the path has its own field in the log
    if error.status_code != 405:
        return error_response(shown, path, error.headers)
    # Starlette's own Allow header names only the methods of the first route that matches.
    routes_here = routes_at(routes, path)
    methods = {method for route in routes_here for method in route.methods or ()}
    methods |= {"HEAD"} if "GET" in methods else set()
    return error_response(shown, path, {"Allow": ", ".join(sorted(methods))})


def _route_hint(routes: Sequence[Route], path: str) -> str:
    """Return a hint at the route that was meant: clients often omit `/v1`, or repeat it."""
    patterns = {route.path for route in routes}
    path_meant = f"/v1{path}" if f"/v1{path}" in patterns else path.removeprefix("/v1")
    return f". Did you mean {path_meant}?" if path_meant in patterns else ""


async def _on_unexpected(request: Request, error: Exception) -> Response:
    _log.error("unexpected error", exc_info=error)
    shown = InternalError("internal error; the server's log has the details")
    return error_response(shown, request.scope["path"])
