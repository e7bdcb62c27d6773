"""The OpenAPI document of the routes, out of what their decorators say. Pure, and slow: it is made
when somebody asks for it.

OpenAPI 3.2, the first that can tell what the events of a stream are.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from inspect import cleandoc
from typing import Any

from fastapi.routing import APIRoute

from omlx_server import __version__
from omlx_server.api.description import problems
from omlx_server.api.description.operation import EXTRA, Bytes, Events, Header, Operation, Query
from omlx_server.api.description.schemas import Schema, Schemas

_JSON = "application/json"
_RESPONSES = "#/components/responses/"
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ABOUT = "An LLM server with the APIs of OpenAI and Anthropic, on MLX."


def document(routes: Iterable[APIRoute], *, keys_needed: bool) -> Schema:
    """Raises KeyError for a route that does not say what it takes and gives."""
    known = [(route, (route.openapi_extra or {})[EXTRA]) for route in routes]
    schemas = Schemas(kind for _, operation in known for kind in _kinds(operation))
    paths: dict[str, Schema] = {}
    failures: dict[str, Schema] = {}
    for route, operation in known:
        path = _path(route)
        for method in sorted(route.methods or ()):
            item = _Item(route, operation, method, schemas, keys_needed=keys_needed)
            paths.setdefault(path, {})[method.lower()] = item.shape()
            failures |= item.failures()
    return {
        "openapi": "3.2.0",
        "info": {"title": "omlx_server", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": dict(sorted(failures.items())),
            "securitySchemes": _KEYS,
        },
    }


def _path(route: APIRoute) -> str:
    """Without the converters of starlette."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)


def _kinds(operation: Operation) -> Iterator[Any]:
    """All types of which there must be a schema."""
    yield from problems.KINDS
    yield from (query.kind for query in operation.query)
    given = [operation.answer, operation.sick, operation.body]
    if operation.events is not None:
        given.append(operation.events.data)
    yield from (kind for kind in given if kind is not None and not isinstance(kind, Bytes))


class _Item:
    """One method of one path."""

    def __init__(
        self,
        route: APIRoute,
        operation: Operation,
        method: str,
        schemas: Schemas,
        *,
        keys_needed: bool,
    ) -> None:
        self._route = route
        self._operation = operation
        self._method = method
        self._schemas = schemas
        self._keys_needed = keys_needed and not operation.is_open

    def shape(self) -> Schema:
        operation, method = self._operation, self._method.lower()
        summary, _, rest = cleandoc(self._route.endpoint.__doc__ or "").partition("\n\n")
        shape: Schema = {
            "tags": [operation.tag],
            "operationId": re.sub(r"\W+", "_", f"{method}{_path(self._route)}").strip("_"),
            "summary": summary.replace("\n", " "),
            "responses": self._responses(),
        }
        if rest:
            shape["description"] = rest
        if parameters := [*self._path_parameters(), *map(self._query, operation.query)]:
            shape["parameters"] = parameters
        if operation.body is not None:
            shape["requestBody"] = {"required": True, "content": self._content(operation.body)}
        if self._keys_needed:
            shape["security"] = [{name: []} for name in _KEYS]
        return shape

    def failures(self) -> Schema:
        """The responses to which `shape` refers."""
        path, schemas = self._route.path, self._schemas
        return {
            problems.name_of(status, path): problems.response(
                status, _json(schemas.of(problems.kind_of(status, path)))
            )
            for status in self._statuses
        }

    @property
    def _statuses(self) -> list[int]:
        return problems.statuses(self._operation, self._method, self._route.path)

    def _path_parameters(self) -> list[Schema]:
        return [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"\{(\w+)\}", _path(self._route))
        ]

    def _query(self, query: Query) -> Schema:
        schema = self._schemas.of(query.kind)
        return {"name": query.name, "in": "query", "description": query.about, "schema": schema}

    def _responses(self) -> Schema:
        operation, path = self._operation, self._route.path
        responses: Schema = {}
        for status in self._statuses:
            responses[str(status)] = {"$ref": _RESPONSES + problems.name_of(status, path)}
        if operation.answer is not None:
            responses["200"] = self._answer()
        if operation.sick is not None:
            responses["503"] = problems.response(503, self._content(operation.sick))
        return dict(sorted(responses.items()))

    def _answer(self) -> Schema:
        operation = self._operation
        about = "What was asked for."
        if isinstance(operation.answer, Bytes):
            about = operation.answer.about
        shape: Schema = {"description": about}
        if operation.headers:
            shape["headers"] = _headers(operation.headers)
        if self._method == "HEAD":
            return shape
        shape["content"] = self._content(operation.answer)
        if operation.events is not None:
            shape["content"]["text/event-stream"] = {"itemSchema": self._event(operation.events)}
        return shape

    def _content(self, kind: Any) -> Schema:
        if isinstance(kind, Bytes):
            return {media: {} for media in kind.media}
        return _json(self._schemas.of(kind))

    def _event(self, events: Events) -> Schema:
        data: Schema = {
            "type": "string",
            "contentMediaType": _JSON,
            "contentSchema": self._schemas.of(events.data),
        }
        if events.done:
            data = {"anyOf": [{"const": "[DONE]"}, data]}
        fields = {"data": data} | ({"event": {"type": "string"}} if events.named else {})
        return {"type": "object", "required": list(fields), "properties": fields}


def _json(schema: Schema) -> Schema:
    return {_JSON: {"schema": schema}}


def _headers(headers: Sequence[Header]) -> Schema:
    return {
        header.name: {
            "description": header.about,
            "required": header.always,
            "schema": {"type": "string"},
        }
        for header in headers
    }
