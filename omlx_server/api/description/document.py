"""GET /openapi.json: the document of all routes, made at the first request.

It is OpenAPI 3.2, the first version that can describe the events of a stream.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core.core_schema import TaggedUnionSchema
from starlette.responses import Response

from omlx_server import __version__
from omlx_server.api.description.operation import EXTRA, Bytes, Events, Operation, ResponseHeader
from omlx_server.api.http import anthropic_errors as anthropic
from omlx_server.api.http import ollama_errors as ollama
from omlx_server.api.http.anthropic_errors import AnthropicError
from omlx_server.api.http.errors import Error
from omlx_server.api.http.ollama_errors import OllamaError

_JSON = "application/json"
_JSON_LINES = "application/x-ndjson"
_RESPONSES = "#/components/responses/"
_KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_STATUS_TEXTS = {
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
_STATUSES_OF_ALL = (400, 403, 408, 431, 500)
# These precede the route, so they have OpenAI's envelope.
_STATUSES_BEFORE_ROUTES = (408, 431)
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds to wait.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}
_ERROR_TYPES = (Error, AnthropicError, Error | AnthropicError, OllamaError, Error | OllamaError)
_DESCRIPTION = "An LLM server with the APIs of OpenAI, Anthropic and Ollama, on MLX."
Schema = dict[str, Any]
_SCHEMAS = "#/components/schemas/"
_MODE: JsonSchemaMode = "validation"
_NULL = {"type": "null"}
_STRING = {"type": "string"}

router = APIRouter()


class _SchemaGenerator(GenerateJsonSchema):
    """Pydantic's generator without titles. `oneOf` without a discriminator becomes `anyOf`."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tagged_union_schema(self, schema: TaggedUnionSchema) -> Schema:
        shape = super().tagged_union_schema(schema)
        if "discriminator" not in shape:
            shape["anyOf"] = shape.pop("oneOf")
        return shape


class Schemas:
    """The schemas of all `kinds`. `components` holds, by name, those that others refer to."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        unique = list(dict.fromkeys(kinds))
        inputs = [(kind, _MODE, TypeAdapter[Any](kind)) for kind in unique]
        by_mode, common = TypeAdapter.json_schemas(
            inputs, ref_template=f"{_SCHEMAS}{{model}}", schema_generator=_SchemaGenerator
        )
        self.components: dict[str, Schema] = common.get("$defs", {})
        self._by_kind: dict[Any, Schema] = {kind: by_mode[kind, _MODE] for kind in unique}
        for kind, schema in self._by_kind.items():
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                _allow_null(self.components[schema["$ref"].removeprefix(_SCHEMAS)])

    def of(self, kind: Any) -> Schema:
        """Return the schema of one of `kinds`; KeyError for any other type."""
        return self._by_kind[kind]


def _allow_null(body: Schema) -> None:
    """Let each optional field of a body's schema also be null."""
    fields = body.get("properties", {})
    for name in fields.keys() - set(body.get("required", ())):
        options = fields[name].get("anyOf", [fields[name]])
        # An empty schema allows anything.
        if fields[name] and _NULL not in options:
            fields[name] = {"anyOf": [*options, _NULL]}


@router.get("/openapi.json", openapi_extra=Operation("Server", dict[str, Any]).extra)
async def openapi(request: Request) -> Response:
    """This document."""
    # json is used because the bounds of some numbers are too large for orjson.
    text = await asyncio.to_thread(lambda: json.dumps(request.app.openapi(), ensure_ascii=False))
    return Response(text, media_type=_JSON)


def document(routes: Iterable[APIRoute], *, keys_needed: bool) -> Schema:
    """Return the OpenAPI document of `routes`. Raises KeyError for a route without an Operation."""
    operations = [(route, (route.openapi_extra or {})[EXTRA]) for route in routes]
    schemas = Schemas(kind for _, operation in operations for kind in _types_of(operation))
    paths: dict[str, Schema] = {}
    error_responses: dict[str, Schema] = {}
    for route, operation in operations:
        for name in sorted(route.methods or ()):
            method = _Method(route, operation, name, schemas, keys_needed, error_responses)
            paths.setdefault(route.path_format, {})[name.lower()] = method.shape()
    return {
        "openapi": "3.2.0",
        "info": {"title": "omlx_server", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": dict(sorted(error_responses.items())),
            "securitySchemes": _KEY_SCHEMES,
        },
    }


def _types_of(operation: Operation) -> Iterator[Any]:
    yield from _ERROR_TYPES
    yield from (query.kind for query in operation.query)
    kinds = [operation.answer, operation.unhealthy, operation.body, operation.lines]
    if operation.events is not None:
        kinds.append(operation.events.data)
    yield from (kind for kind in kinds if kind is not None and not isinstance(kind, Bytes))


@dataclass(frozen=True, slots=True)
class _Method:
    """One method of one path, which adds its error responses to `error_responses`."""

    route: APIRoute
    operation: Operation
    method: str
    schemas: Schemas
    keys_needed: bool
    error_responses: Schema

    def shape(self) -> Schema:
        operation, method = self.operation, self.method.lower()
        summary, _, details = cleandoc(self.route.endpoint.__doc__ or "").partition("\n\n")
        shape: Schema = {
            "tags": [operation.tag],
            "operationId": re.sub(r"\W+", "_", f"{method}{self.route.path_format}").strip("_"),
            "summary": summary.replace("\n", " "),
            "responses": self._responses(),
        }
        if details:
            shape["description"] = details
        parameters: list[Schema] = [
            {"name": name, "in": "path", "required": True, "schema": _STRING}
            for name in self.route.param_convertors
        ]
        for query in operation.query:
            schema = self.schemas.of(query.kind)
            about = {"description": query.about, "schema": schema}
            parameters.append({"name": query.name, "in": "query", **about})
        if parameters:
            shape["parameters"] = parameters
        if operation.body is not None:
            shape["requestBody"] = {"required": True, "content": self._content(operation.body)}
        if self.keys_needed and not operation.is_open:
            shape["security"] = [{name: []} for name in _KEY_SCHEMES]
        return shape

    def _responses(self) -> Schema:
        operation, path = self.operation, self.route.path
        responses: Schema = {}
        for status in _statuses(operation, self.method, path):
            name, kind = _shared_error(status, path)
            self.error_responses[name] = _error_response(status, self._content(kind))
            responses[str(status)] = {"$ref": _RESPONSES + name}
        if operation.answer is not None or operation.events is not None:
            responses["200"] = self._success()
        if operation.unhealthy is not None:
            responses["503"] = _error_response(503, self._content(operation.unhealthy))
        return dict(sorted(responses.items()))

    def _success(self) -> Schema:
        operation, events = self.operation, self.operation.events
        answer = operation.answer
        shape: Schema = {"description": "What was asked for."}
        if isinstance(answer, Bytes):
            shape["description"] = answer.about
        if operation.headers:
            shape["headers"] = _headers(operation.headers)
        shape["content"] = self._content(answer) if answer is not None else {}
        if operation.page is not None:
            shape["content"] |= self._content(operation.page)
        if operation.lines is not None:
            shape["content"][_JSON_LINES] = {"itemSchema": self.schemas.of(operation.lines)}
        if events is not None:
            shape["content"]["text/event-stream"] = {"itemSchema": self._event_schema(events)}
        return shape

    def _content(self, kind: Any) -> Schema:
        if isinstance(kind, Bytes):
            return {media: {} for media in kind.media}
        return {_JSON: {"schema": self.schemas.of(kind)}}

    def _event_schema(self, events: Events) -> Schema:
        data: Schema = {
            "type": "string",
            "contentMediaType": _JSON,
            "contentSchema": self.schemas.of(events.data),
        }
        if events.done:
            data = {"anyOf": [{"const": "[DONE]"}, data]}
        fields = {"data": data} | ({"event": _STRING} if events.named else {})
        return {"type": "object", "required": list(fields), "properties": fields}


def _headers(headers: Sequence[ResponseHeader]) -> Schema:
    return {
        header.name: {"description": header.about, "required": header.always, "schema": _STRING}
        for header in headers
    }


def _statuses(operation: Operation, method: str, path: str) -> list[int]:
    codes = {*_STATUSES_OF_ALL, *operation.may_fail}
    codes |= set() if operation.is_open else {401}
    if method in ("POST", "PATCH"):
        codes |= {415} if operation.body is None else {413, 415}
    if operation.unhealthy is not None:
        codes.discard(503)
    if anthropic.applies_to(path) and 503 in codes:
        codes = codes - {503} | {529}
    if ollama.applies_to(path) and 429 in codes:
        codes = codes - {429} | {503}
    return sorted(codes)


def _shared_error(status: int, path: str) -> tuple[str, Any]:
    """Return the name of the shared response for `status`, and its body's type."""
    if status in _STATUSES_BEFORE_ROUTES:
        return f"Error{status}", Error
    # What is no HTTP gets a 400 before its path is known, in OpenAI's envelope.
    if ollama.applies_to(path):
        return f"OllamaError{status}", Error | OllamaError if status == 400 else OllamaError
    if anthropic.applies_to(path):
        kind = Error | AnthropicError if status == 400 else AnthropicError
        return f"AnthropicError{status}", kind
    return f"Error{status}", Error


def _error_response(status: int, content: dict[str, Any]) -> dict[str, Any]:
    shape: dict[str, Any] = {"description": _STATUS_TEXTS[status], "content": content}
    return {**shape, "headers": _RETRY_AFTER} if status == 429 else shape
