"""Extracts the bytes of images from data URLs and base64.

The server opens no addresses and no files for a client.
"""

import binascii
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from omlx_server.errors import BadRequest
from omlx_server.images import limits

# Decoding a percent-encoded text needs about twenty times its size.
_MOST_PERCENT_ENCODED_BYTES = 1024 * 1024
_URLSAFE = bytes.maketrans(b"-_", b"+/")
_WHITESPACE = b" \t\r\n\v\f"
_SLICE_BYTES = 1 << 18  # a multiple of four, as four digits of base64 belong together
_SEND = "send the image itself, as a data URL (data:image/png;base64,...)"


def from_image_url(url: str) -> bytes:
    """Return the bytes in a data URL. Raises BadRequest."""
    scheme, colon, _ = url[:16].lstrip().lower().partition(":")
    if not (colon and scheme == "data"):
        raise BadRequest(_why_not_opened(scheme))
    head, comma, data = _encode_ascii(url).partition(b",")
    if not comma:
        raise BadRequest("the data URL has no comma before its data")
    if b"%" in data:
        if len(data) > _MOST_PERCENT_ENCODED_BYTES:
            raise BadRequest("a percent-encoded data URL is too long: use base64")
        data = unquote_to_bytes(data)
    if head.rstrip().lower().endswith(b";base64"):
        data = _decode_base64(data)
    if not data:
        raise BadRequest("the image is empty")
    if len(data) > limits.MOST_BYTES:
        raise _too_large()
    return data


def url_of_input_image(part: Mapping[str, Any], *, param: str) -> str:
    """Return the URL in an `input_image` of /v1/responses. Raises BadRequest."""
    url = part.get("image_url")
    if url is None and part.get("file_id") is not None:
        raise BadRequest(
            f"this server keeps no files, so it knows no file_id: {_SEND}", param=param
        )
    if not isinstance(url, str):
        raise BadRequest(f"input_image needs image_url: {_SEND}", param=param)
    return url


def url_of_image_block(block: Mapping[str, Any], *, param: str) -> str:
    """Return a data URL, or the URL that was sent, of Anthropic's `image` block. Raises
    BadRequest."""
    match block.get("source"):
        case {"type": "base64", "data": str(data)}:
            if "%" in data:
                raise _not_base64(param)
            return f"data:;base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
        case {"type": "base64"}:
            problem = "an image source of type base64 needs data"
        case {"type": "url"}:
            problem = "an image source of type url needs url"
        case {"type": "file"}:
            problem = "this server keeps no files: send the image with a source of type base64"
        case {}:
            problem = "the source of an image must have the type base64"
        case _:
            problem = "an image block needs source"
    raise BadRequest(problem, param=param)


def _why_not_opened(scheme: str) -> str:
    if scheme in ("http", "https", "ftp", "s3", "gs"):
        return f"this server opens no addresses of other machines: {_SEND}"
    return f"this server opens no files and knows no such address: {_SEND}"


def _encode_ascii(text: str) -> bytes:
    """Encode a text, unless it is too long for the largest image, even with whitespace."""
    if len(text) > limits.MOST_BYTES * 3 // 2 + 1024:
        raise _too_large()
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise BadRequest("the image's data has characters that base64 has not") from None


def _decode_base64(text: bytes) -> bytes:
    """Decode either alphabet, padded or not, in slices that release the GIL between them."""
    standard = b"".join(piece.translate(_URLSAFE, _WHITESPACE) for piece in _slices(text))
    digits = standard.rstrip(b"=")
    if len(standard) - len(digits) > 2 or b"=" in digits:
        raise _not_base64()
    padded = digits + b"=" * (-len(digits) % 4)
    try:
        return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in _slices(padded))
    except binascii.Error:
        raise _not_base64() from None


def _slices(text: bytes) -> Iterator[bytes]:
    return (text[start : start + _SLICE_BYTES] for start in range(0, len(text), _SLICE_BYTES))


def _not_base64(param: str | None = None) -> BadRequest:
    return BadRequest("the image's data is not base64", param=param)


def _too_large() -> BadRequest:
    return BadRequest(
        f"the image is too large: {limits.MOST_BYTES / 1024**2:g} MiB are the most for one"
    )
