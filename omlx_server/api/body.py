"""Request bodies: read with a cap; parsed as strict JSON, validated as strict types."""

from functools import cache
from typing import TypeVar

import orjson
from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect

from omlx_server.api.errors import from_validation
from omlx_server.api.exchange import has_body
from omlx_server.errors import BadRequest, PayloadTooLarge

M = TypeVar("M", bound=BaseModel)


class StrictModel(BaseModel):
    """No coercion: true is not 1, "5" is not 5, NaN is nothing. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


async def read(request: Request, kind: type[M], limit: int) -> M:
    """Read and validate a JSON body of at most `limit` bytes.

    Raises:
        PayloadTooLarge, BadRequest: as the API's clients expect.
    """
    data = _parse(await read_bytes(request, limit))
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise from_validation(error, _field_names(kind)) from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


@cache
def _field_names(kind: type[BaseModel]) -> frozenset[str]:
    """The names that a model and the models in it know: these may be told to a client."""
    schema = kind.model_json_schema()
    parts = (schema, *schema.get("$defs", {}).values())
    return frozenset(name for part in parts for name in part.get("properties", {}))


async def read_bytes(request: Request, limit: int) -> bytes:
    """A body of at most `limit` bytes. Raises PayloadTooLarge, and BadRequest if it breaks off."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise PayloadTooLarge(f"the body may have {limit} bytes at most")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise PayloadTooLarge(f"the body may have {limit} bytes at most")
    except ClientDisconnect:
        raise BadRequest("the client left before its request was complete") from None
    has_body(len(body))
    return bytes(body)


def _parse(body: bytes) -> dict[str, object]:
    if not body.strip():
        raise BadRequest("the body is empty; a JSON object is expected")
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {error.msg} at byte {error.pos}") from None
    if not isinstance(data, dict):
        raise BadRequest("the body must be a JSON object")
    # An optional field that is null equals an absent one.
    return {key: value for key, value in data.items() if value is not None}
