"""Refusals of connections, answered before any request is read."""

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from omlx_server.api.http.errors import envelope
from omlx_server.errors import BadRequest, NotNow, OmlxError, Unavailable

_RETRY_SECONDS = 5


class HeadTooLarge(BadRequest):
    status = 431
    code = "headers_too_large"
    quotes_request = False


class NoHttp(BadRequest):
    """The client has sent something other than HTTP."""

    quotes_request = False


class TooManyRequests(Unavailable):
    code = "too_many_connections"


def too_large(most_bytes: int) -> HeadTooLarge:
    return HeadTooLarge(f"the request line and headers may have {most_bytes} bytes at most")


def too_many() -> TooManyRequests:
    return TooManyRequests("too many connections are busy", retry_after=_RETRY_SECONDS)


def reply(error: OmlxError) -> bytes:
    """Return a whole HTTP response, after which the connection ends."""
    body = orjson.dumps(envelope(error))
    retry = b"retry-after: %d\r\n" % error.retry_after if isinstance(error, NotNow) else b""
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n"
    return STATUS_LINE[error.status] + head % len(body) + retry + b"\r\n" + body
