"""Finds the bytes of an image in the forms in which the APIs send one.

Only data URLs and base64 are taken. The server opens no addresses and no files for a client: it
would open them with its own rights, in its own network.
"""

import binascii
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from omlx_server.errors import BadRequest

# Anthropic takes 5 MB and OpenAI 20 MB an image.
MOST_BYTES = 20 * 1024 * 1024
# Taking a percent-encoded text apart needs about twenty times its size.
_MOST_PERCENT_ENCODED = 1024 * 1024
_URLSAFE = bytes.maketrans(b"-_", b"+/")
_WHITESPACE = b" \t\r\n\v\f"
_SLICE = 1 << 18  # bytes; four digits of base64 stay together
_SEND = "send the image itself, as a data URL (data:image/png;base64,...)"


def from_image_url(value: object, *, param: str, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of `image_url` of a chat: a data URL, or an object with `url` and perhaps `detail`.
    Raises BadRequest with `param`."""
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise BadRequest(
            f"image_url must be a data URL or an object with url: {_SEND}", param=param
        )
    return _from_url(url, param, most_bytes)


def url_of_input_image(part: Mapping[str, Any], *, param: str) -> str:
    """The `image_url` of a part of type `input_image` of the Responses API. Raises BadRequest with
    `param` if there is none."""
    url = part.get("image_url")
    if url is None and part.get("file_id") is not None:
        raise BadRequest(
            f"this server keeps no files, so it knows no file_id: {_SEND}", param=param
        )
    if not isinstance(url, str):
        raise BadRequest(f"input_image needs image_url: {_SEND}", param=param)
    return url


def url_of_image_block(block: Mapping[str, Any], *, param: str) -> str:
    """The image in an `image` block of the Anthropic API as a data URL, or the URL that is there in
    its place. Raises BadRequest with `param` if there is neither."""
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise BadRequest("an image block needs source", param=param)
    match source.get("type"):
        case "base64":
            data = source.get("data")
            if not isinstance(data, str):
                raise BadRequest("an image source of type base64 needs data", param=param)
            if "%" in data:
                raise _not_base64(param)
            return f"data:;base64,{data}"
        case "url":
            url = source.get("url")
            if not isinstance(url, str):
                raise BadRequest("an image source of type url needs url", param=param)
            return url
        case "file":
            raise BadRequest(
                "this server keeps no files: send the image with a source of type base64",
                param=param,
            )
    raise BadRequest("the source of an image must have the type base64", param=param)


def _from_url(url: str, param: str, most_bytes: int) -> bytes:
    scheme, colon, _ = url[:16].lstrip().lower().partition(":")
    if not (colon and scheme == "data"):
        raise BadRequest(_why_not(scheme), param=param)
    text = _short(url, param, most_bytes)
    head, comma, data = text.partition(b",")
    if not comma:
        raise BadRequest("the data URL has no comma before its data", param=param)
    if b"%" in data:
        if len(data) > _MOST_PERCENT_ENCODED:
            raise BadRequest("a percent-encoded data URL is too long: use base64", param=param)
        data = unquote_to_bytes(data)
    if head.rstrip().lower().endswith(b";base64"):
        data = _decode_base64(data, param)
    return _bounded(data, param, most_bytes)


def _why_not(scheme: str) -> str:
    if scheme in ("http", "https", "ftp", "s3", "gs"):
        return f"this server opens no addresses of other machines: {_SEND}"
    return f"this server opens no files and knows no such address: {_SEND}"


def _short(text: str, param: str, most_bytes: int) -> bytes:
    """The text as ASCII. It is refused before anything is copied if it is longer than base64 with
    some whitespace would be."""
    if len(text) > most_bytes * 3 // 2 + 1024:
        raise _too_large(param, most_bytes)
    try:
        return text.encode("ascii")
    except UnicodeEncodeError:
        raise BadRequest(
            "the image's data has characters that base64 has not", param=param
        ) from None


def _decode_base64(text: bytes, param: str) -> bytes:
    """Base64 in either alphabet, with padding and without. Each slice holds the GIL by itself."""
    bare = b"".join(part.translate(_URLSAFE, _WHITESPACE) for part in _slices(text))
    digits = bare.rstrip(b"=")
    if len(bare) - len(digits) > 2 or b"=" in digits:
        raise _not_base64(param)
    padded = digits + b"=" * (-len(digits) % 4)
    try:
        return b"".join(binascii.a2b_base64(part, strict_mode=True) for part in _slices(padded))
    except binascii.Error:
        raise _not_base64(param) from None


def _slices(text: bytes) -> Iterator[bytes]:
    return (text[at : at + _SLICE] for at in range(0, len(text), _SLICE))


def _not_base64(param: str) -> BadRequest:
    return BadRequest("the image's data is not base64", param=param)


def _bounded(data: bytes, param: str, most_bytes: int) -> bytes:
    if not data:
        raise BadRequest("the image is empty", param=param)
    if len(data) > most_bytes:
        raise _too_large(param, most_bytes)
    return data


def _too_large(param: str, most_bytes: int) -> BadRequest:
    return BadRequest(
        f"the image is too large: {most_bytes / 1024**2:g} MiB are the most for one", param=param
    )
