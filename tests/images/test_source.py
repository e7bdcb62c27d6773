"""The bytes of an image, out of what the APIs send."""

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_server.errors import BadRequest
from omlx_server.images import limits
from omlx_server.images.source import from_image_url, url_of_image_block, url_of_input_image

DATA = bytes(range(256)) * 3 + b"\xfb\xff"
TEXT = base64.b64encode(DATA).decode()


def url(data: str = TEXT, head: str = "data:image/png;base64") -> str:
    return f"{head},{data}"


def responses(value: object) -> bytes:
    part = {"type": "input_image", "detail": "auto", "image_url": value}
    return from_image_url(url_of_input_image(part, param="messages.0.content.1"))


def anthropic(value: object) -> bytes:
    block = {"type": "image", "source": {"type": "url", "url": value}}
    return from_image_url(url_of_image_block(block, param="messages.0.content.1"))


def base64_block(data: object) -> bytes:
    base64_source = {"type": "base64", "media_type": "image/png", "data": data}
    block = {"type": "image", "source": base64_source}
    return from_image_url(url_of_image_block(block, param="messages.0.content.1"))


@pytest.mark.parametrize("read", [from_image_url, responses, anthropic])
@pytest.mark.parametrize(
    "text",
    [
        url(),
        url(head="DATA:Image/PNG;Base64"),
        url(head="data:;base64"),
        url(head="data:image/png;charset=utf-8;base64"),
        url(head="data:text/plain;base64"),
        url(TEXT.rstrip("=")),
        url(TEXT.replace("+", "-").replace("/", "_")),
        url(TEXT.replace("+", "-").replace("/", "_").rstrip("=")),
        url("\r\n".join(TEXT[at : at + 76] for at in range(0, len(TEXT), 76))),
        url(f" {TEXT}\n"),
        f"  {url()}",
        url(TEXT.replace("=", "%3D").replace("+", "%2B")),
        url(quote_from_bytes(DATA), "data:image/png"),
    ],
)
def test_a_data_url_is_taken_in_each_form(read: Callable[[object], bytes], text: str) -> None:
    assert read(text) == DATA


def test_a_base64_source_is_taken() -> None:
    assert base64_block(TEXT) == base64_block(TEXT.rstrip("=")) == DATA


ADDRESSES = [
    ("http://127.0.0.1/a.png", "opens no addresses"),
    ("HTTPS://example.org/a.png", "opens no addresses"),
    ("file:///etc/passwd", "opens no files"),
    ("/etc/passwd", "opens no files"),
    ("../a.png", "opens no files"),
    ("C:\\a.png", "opens no files"),
    ("~/a.png", "opens no files"),
    ("ftp://example.org/a.png", "opens no addresses"),
    ("gopher://example.org/", "no such address"),
    ("blob:https://example.org/1", "no such address"),
    ("javascript:alert(1)", "no such address"),
    (TEXT, "as a data URL"),
    ("", "as a data URL"),
    ("data", "as a data URL"),
]


@pytest.mark.parametrize("read", [from_image_url, responses, anthropic])
@pytest.mark.parametrize(("text", "why"), ADDRESSES)
def test_an_address_is_refused_with_the_reason(
    read: Callable[[object], bytes], text: str, why: str
) -> None:
    with pytest.raises(BadRequest, match=why) as caught:
        read(text)
    assert "data URL" in caught.value.message


WRONG = ["====", "A", "AAAAA", "AA=A", "A===", "AA*A", "AAAA====", "Aé==", "AA\0A", "\ud800AAA"]


@pytest.mark.parametrize("read", [base64_block, lambda text: from_image_url(url(text))])
@pytest.mark.parametrize("text", [*WRONG, "<svg/>"])
def test_wrong_base64_is_refused(read: Callable[[object], bytes], text: str) -> None:
    with pytest.raises(BadRequest, match=r"base64|empty"):
        read(text)


@pytest.mark.parametrize("value", [None, 3, [], {}, {"url": None}, {"url": 3}, [url()], b"data:,"])
@pytest.mark.parametrize("read", [responses, anthropic, base64_block])
def test_another_type_is_refused(read: Callable[[object], bytes], value: object) -> None:
    with pytest.raises(BadRequest):
        read(value)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ({}, "needs source"),
        ({"source": "a.png"}, "needs source"),
        ({"source": {}}, "must have the type"),
        ({"source": {"type": "file", "file_id": "file_1"}}, "keeps no files"),
        ({"source": {"type": ["base64"]}}, "must have the type"),
        ({"source": {"type": "base64"}}, "needs data"),
        ({"source": {"type": "base64", "data": ""}}, "empty"),
        ({"source": {"type": "base64", "data": url()}}, "not base64"),
    ],
)
def test_a_wrong_block_is_refused(block: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        from_image_url(url_of_image_block(block, param="messages.0.content.0"))


def test_a_file_of_the_responses_api_is_refused() -> None:
    with pytest.raises(BadRequest, match="keeps no files"):
        url_of_input_image({"type": "input_image", "file_id": "file_1"}, param="input.0")


@pytest.mark.parametrize("read", [base64_block, lambda text: from_image_url(url(text))])
def test_the_bytes_of_an_image_are_bounded(
    read: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_BYTES", 1024 * 1024)
    fits = base64.b64encode(bytes(1024 * 1024)).decode()
    assert len(read(fits)) == 1024 * 1024
    for size in (1024 * 1024 + 1, 3 * 1024 * 1024):
        with pytest.raises(BadRequest, match=r"too large: 1 MiB"):
            read(base64.b64encode(bytes(size)).decode())


def test_long_base64_is_decoded_in_slices_as_it_would_be_whole() -> None:
    data = bytes(range(256)) * 2500
    text = base64.b64encode(data).decode()
    assert from_image_url(url(text)) == base64_block(text) == data
    lines = "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    assert from_image_url(url(lines)) == data
    at = 1 << 18
    for broken in ("AA==", "A===", "*AAA", "="):
        with pytest.raises(BadRequest, match="not base64"):
            from_image_url(url(text[: at - 4] + broken + text[at - 4 + len(broken) :]))


def test_what_is_too_long_is_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_BYTES", 1024 * 1024)
    with pytest.raises(BadRequest, match="too large"):
        base64_block("*" * 2_000_000)


def test_a_long_percent_encoded_url_is_refused() -> None:
    with pytest.raises(BadRequest, match="percent-encoded"):
        from_image_url(url("%00" * 400_000, "data:image/png"))


@pytest.mark.parametrize("text", ["data:image/png;base64", "data:,", "data:image/png;base64,"])
def test_a_url_without_data_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"comma|empty"):
        from_image_url(text)


@given(st.binary(min_size=1), st.booleans(), st.booleans())
def test_any_bytes_come_back(data: bytes, urlsafe: bool, padded: bool) -> None:
    text = (base64.urlsafe_b64encode if urlsafe else base64.b64encode)(data).decode()
    assert from_image_url(url(text if padded else text.rstrip("="))) == data
    assert base64_block(text) == data


@given(st.text())
def test_any_text_is_taken_or_refused(text: str) -> None:
    for read in (from_image_url, anthropic, base64_block, lambda value: from_image_url(url(value))):
        try:
            assert isinstance(read(text), bytes)
        except BadRequest as error:
            assert error.message
