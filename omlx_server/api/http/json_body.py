"""Read request bodies of bounded size as strict JSON, and validate them strictly."""

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from starlette.requests import ClientDisconnect

from omlx_server.api.http.bodies import BODY, SMALL, BeginBody, RequestBody
from omlx_server.api.http.errors import bad_request_of
from omlx_server.api.http.exchange import current_exchange
from omlx_server.errors import BadBody, BadRequest, PayloadTooLarge, UnsupportedMedia
from omlx_server.models.hub.names import LONGEST_NAME
from omlx_server.text.grammar.to_grammar import MAX_CHARS

_UNBOUNDED = "unbounded"
# An answer may repeat a value so many levels deep, and orjson must be able to write it there.
_ANSWER_LEVELS = 16
_ERROR_FIELDS = {"most": MAX_CHARS}
M = TypeVar("M", bound=BaseModel)

_GZIP = ("gzip", "x-gzip")
_MOST_EXPANSION = 1032  # decoded bytes for one encoded byte
# The most objects, arrays and keys of a body: 8 MB of them take seconds to parse.
_MOST_VALUES = 200_000
_SLICE_BYTES = 1 << 16  # bytes

# Bodies larger than a slice are parsed one at a time: parsed, they are many times their bytes.
_LARGE_BODIES = ThreadPoolExecutor(1, thread_name_prefix="bodies")


def _mark_unbounded(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    schema: Any = handler(source)
    return {**schema, "metadata": {**schema.get("metadata", {}), _UNBOUNDED: True}}


def _check_size_and_depth(value: Any) -> Any:
    """Return `value`. Raises PydanticCustomError for too many bytes as JSON or deep nesting."""
    nested = value
    for _ in range(_ANSWER_LEVELS):
        nested = [nested]
    try:
        nbytes = len(orjson.dumps(nested))
    except orjson.JSONEncodeError:
        raise PydanticCustomError("too_deep", "Input is nested too deeply") from None
    if nbytes > MAX_CHARS:
        raise PydanticCustomError(
            "too_long", "Input should have at most {most} bytes as JSON", _ERROR_FIELDS
        )
    return value


Text = Annotated[str, GetPydanticSchema(_mark_unbounded)]
"""A part of a prompt, or an image, bounded only by the body's limit."""

Source = Annotated[str, Field(max_length=MAX_CHARS)]
"""A grammar, a pattern, or the text of a schema."""

JsonObject = Annotated[dict[str, Any], AfterValidator(_check_size_and_depth)]
"""A schema or options, of any form."""

Choices = Annotated[list[Source], AfterValidator(_check_size_and_depth)]
"""The answers to choose from."""


def bound_texts_and_lists(schema: Any) -> None:
    """Bound each other string of a core schema as a name; stop lists at their first fault."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        if schema.get("type") == "str" and not schema.get("metadata", {}).get(_UNBOUNDED):
            schema.setdefault("max_length", LONGEST_NAME)
        for member in schema.values():
            bound_texts_and_lists(member)
    elif isinstance(schema, list | tuple):
        for member in schema:
            bound_texts_and_lists(member)


class StrictModel(BaseModel):
    """No coercion: true is not 1, "5" is not 5, NaN is nothing. Unknown fields are ignored. Texts
    are bounded as names, and lists are validated up to their first fault."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _let_other_threads_run(cls, value: Any) -> Any:
        """Return `value`. Pydantic holds the GIL throughout, but not while this runs."""
        return value

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        bound_texts_and_lists(schema)
        return schema


def refuse_unsupported(body: BaseModel, unsupported: Mapping[str, str]) -> None:
    """Raise BadRequest for a field that is set, with its message in `unsupported`."""
    for name, message in unsupported.items():
        if (value := getattr(body, name, None)) or type(value) in (int, float):
            raise BadRequest(message, param=name)


def validate_fields(kind: type[M], fields: Mapping[str, Any]) -> M:
    """Return a request with those `fields` that are not None. Raises BadRequest."""
    set_fields = {name: value for name, value in fields.items() if value is not None}
    try:
        return kind.model_validate(set_fields)
    except ValidationError as error:
        raise bad_request_of(error, frozenset(kind.model_fields)) from None


async def read(request: Request, kind: type[M], limit: int) -> M:
    """Read and validate a JSON body of at most `limit` bytes. Raises PayloadTooLarge, BadRequest,
    UnsupportedMedia for its coding, RequestTimeout, and TooManyBodies where there is no room."""
    begin: BeginBody = request.scope[BODY]
    with begin() as body:
        raw = await read_bytes(request, limit, body)
        if len(raw) <= _SLICE_BYTES:
            return _parse_and_validate(raw, kind)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_LARGE_BODIES, _parse_and_validate, raw, kind)


def _parse_and_validate(raw: bytes, kind: type[M]) -> M:
    _check_values(raw)
    data = _parse_object(raw)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise bad_request_of(error, _field_names(kind)) from None
    except RecursionError:
        raise BadBody("the body is nested too deeply") from None


@cache
def _field_names(kind: type[BaseModel]) -> frozenset[str]:
    """Return the field names of a model and its parts; messages may repeat these."""
    schema = kind.model_json_schema()
    parts = (schema, *schema.get("$defs", {}).values())
    return frozenset(name for part in parts for name in part.get("properties", {}))


async def read_bytes(request: Request, limit: int, body: RequestBody) -> bytes:
    """Return a body, bounded before and after decoding. Raises as `read`."""
    coding = coding_of(request.headers.get("content-encoding", ""))
    sent = await _receive(request, limit, body)
    if not coding:
        return sent
    most = min(limit, len(sent) * _MOST_EXPANSION)
    if most > SMALL:
        await body.make_room(most)
    plain = await asyncio.to_thread(decompress_body, sent, coding, limit)
    body.replace_size(len(plain))
    return plain


async def _receive(request: Request, limit: int, body: RequestBody) -> bytes:
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdigit() else limit
    if size > limit:
        raise PayloadTooLarge(f"the body may have {limit} bytes at most")
    sent = bytearray()
    try:
        async with body.receiving():
            async for part in request.stream():
                sent += part
                if len(sent) > limit:
                    raise PayloadTooLarge(f"the body may have {limit} bytes at most")
                await body.add(len(part), size)
    except ClientDisconnect:
        raise BadBody("the client left before its request was complete") from None
    current_exchange().body = len(sent)
    return bytes(sent)


def _parse_object(body: bytes) -> dict[str, object]:
    if not body.strip():
        raise BadBody("the body is empty; a JSON object is expected")
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadBody(f"the body is not valid JSON: {error.msg} at byte {error.pos}") from None
    if not isinstance(data, dict):
        raise BadBody("the body must be a JSON object")
    # An optional field that is null equals an absent one.
    return {key: value for key, value in data.items() if value is not None}


def _check_values(body: bytes) -> None:
    """Raise PayloadTooLarge for too many objects, arrays and keys."""
    slices = (body[start : start + _SLICE_BYTES] for start in range(0, len(body), _SLICE_BYTES))
    # This also counts those within strings, but is fast; most bodies have few.
    if sum(map(_count_values, slices)) <= _MOST_VALUES:
        return
    if any(values > _MOST_VALUES for values in running_value_counts(body)):
        raise PayloadTooLarge(f"the body may hold {_MOST_VALUES} objects, arrays and keys at most")


def running_value_counts(body: bytes) -> Iterator[int]:
    """Count objects, arrays and keys outside of strings, and yield the sum after each slice."""
    count, starts_in_string, start = 0, False, 0
    while start < len(body):
        part = body[start : start + _SLICE_BYTES]
        backslashes = len(part) - len(part.rstrip(b"\\"))
        if backslashes % 2:  # the escaped byte is the first one of the next slice
            part = body[start : start + _SLICE_BYTES + 1]
        start += len(part)
        # Between quotes lie by turns what is outside of strings and what is within.
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += sum(map(_count_values, pieces[starts_in_string::2]))
        quotes = len(pieces) - 1
        starts_in_string ^= quotes % 2 == 1
        yield count


def _count_values(text: bytes) -> int:
    """Count the characters that begin an object or an array, or end a key."""
    return len(text) - len(text.translate(None, b"[{:"))


def coding_of(header: str) -> str:
    """Return the coding in a Content-Encoding header, "" for none. Raises UnsupportedMedia."""
    coding = header.strip().lower()
    if coding in ("", "identity"):
        return ""
    if coding not in (*_GZIP, "deflate"):
        raise UnsupportedMedia("send the body as it is, or with Content-Encoding gzip or deflate")
    return coding


def decompress_body(body: bytes, coding: str, limit: int) -> bytes:
    """Return the decoded bytes of a whole body. Raises PayloadTooLarge and BadBody."""
    if not body:
        return b""
    stream = zlib.decompressobj(_zlib_wbits(coding, body))
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error:
        raise BadBody(f"the body is not {coding}, as its Content-Encoding says") from None
    if len(plain) > limit:
        raise PayloadTooLarge(f"the body may have {limit} bytes at most, decoded as well")
    if not stream.eof:
        raise BadBody(f"the body breaks off: its {coding} has no end")
    # A second gzip member is refused too: many empty ones would take long.
    if stream.unused_data:
        raise BadBody(f"the body goes on behind the end of its {coding}")
    return plain


def _zlib_wbits(coding: str, data: bytes) -> int:
    """Return the `wbits` by which zlib knows the format of `data`."""
    if coding in _GZIP:
        return 16 + zlib.MAX_WBITS
    # Some clients send deflate without zlib's header, whose two bytes are a multiple of 31.
    has_header = data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2]) % 31 == 0
    return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
