"""Decode compressed bodies, never to more bytes than allowed.

gzip, x-gzip    one member only: many empty ones would take long and hold nothing
deflate         zlib's format, or the bare stream that some clients send
"""

import zlib

from omlx_server.errors import BadBody, PayloadTooLarge, UnsupportedMedia

_GZIP, _ZLIB, _BARE = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
_GZIP_CODINGS = ("gzip", "x-gzip")
_PLAIN = ("", "identity")
MOST_EXPANDED = 1032
"""The most decoded bytes for one encoded byte."""


def coding_of(header: str) -> str:
    """Return the coding in a Content-Encoding header, "" for none. Raises UnsupportedMedia."""
    coding = header.strip().lower()
    if coding in _PLAIN:
        return ""
    if coding not in (*_GZIP_CODINGS, "deflate"):
        raise UnsupportedMedia("send the body as it is, or with Content-Encoding gzip or deflate")
    return coding


def decoded(body: bytes, coding: str, limit: int) -> bytes:
    """Return the decoded bytes of a whole body. Raises PayloadTooLarge for more than `limit`,
    BadBody for another coding, a missing end or bytes after it."""
    if not body:
        return b""
    stream = zlib.decompressobj(_bits(coding, body))
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error:
        raise BadBody(f"the body is not {coding}, as its Content-Encoding says") from None
    if len(plain) > limit:
        raise PayloadTooLarge(f"the body may have {limit} bytes at most, decoded as well")
    if not stream.eof:
        raise BadBody(f"the body breaks off: its {coding} has no end")
    if stream.unused_data:
        raise BadBody(f"the body goes on behind the end of its {coding}")
    return plain


def _bits(coding: str, data: bytes) -> int:
    """Return zlib's `wbits` for `data`. A zlib header is a multiple of 31."""
    if coding in _GZIP_CODINGS:
        return _GZIP
    is_zlib = data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2]) % 31 == 0
    return _ZLIB if is_zlib else _BARE
