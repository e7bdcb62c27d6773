"""Requests with images that no server should take, and with odd ones that it may take."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from tests.api.harness import CHAT, Json
from tests.images.bad_images import bad_images, bombs
from tests.images.files import animated, encoded, noise, small

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
_MOST_IMAGES = 100
_WHAT = "What is this?"


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """`may_pass`: its image is odd, but it is one."""

    name: str
    path: str
    body: Callable[[], Json]
    may_pass: bool = False


def data_url(data: bytes, media: str = "image/png") -> str:
    return f"data:{media};base64,{base64.b64encode(data).decode()}"


def chat_image(url: object) -> Json:
    return {"type": "image_url", "image_url": url}


def chat(model: str, content: object, **fields: Any) -> Json:
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 8, **fields}


def anthropic_image(data: bytes | str, media: str = "image/png") -> Json:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": text}}


def responses(model: str, content: object, **fields: Any) -> Json:
    messages = [{"role": "user", "content": content}]
    return {"model": model, "input": messages, "temperature": 0, "max_output_tokens": 8, **fields}


def wrong_requests(model: str) -> Iterator[ImageRequest]:
    """Each must be refused; those that may pass come last."""
    for name, data, _ in bad_images():
        yield _of_chat(name, model, {"url": data_url(data)})
    for name, url in _urls():
        yield _of_chat(name, model, {"url": url})
        yield _of_chat(f"{name}, as a string", model, url)
    for name, part in _parts():
        yield ImageRequest(name, CHAT, partial(chat, model, [part, _text()]))
    for name, block in _blocks():
        yield ImageRequest(name, MESSAGES, partial(chat, model, [block]))
    for name, part in _inputs():
        yield ImageRequest(name, RESPONSES, partial(responses, model, [part]))
    many = [chat_image({"url": data_url(small("PNG"))})] * (_MOST_IMAGES + 1)
    yield ImageRequest("more images than a request may have", CHAT, partial(chat, model, many))
    for name, data in [*_odd(), *bombs()]:
        content = [chat_image({"url": data_url(data)}), _text()]
        yield ImageRequest(name, CHAT, partial(chat, model, content), may_pass=True)


def _of_chat(name: str, model: str, url: object) -> ImageRequest:
    return ImageRequest(name, CHAT, partial(chat, model, [chat_image(url), _text()]))


def _text() -> Json:
    return {"type": "text", "text": _WHAT}


def _urls() -> Iterator[tuple[str, str]]:
    """Addresses and data URLs that are none."""
    for address in (
        "http://127.0.0.1:9/cat.png",
        "https://example.org/cat.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "ftp://example.org/cat.png",
        "cat.png",
        "",
    ):
        yield f"the address {address!r}", address
    yield "a data URL without a comma", "data:image/png;base64"
    yield "a data URL without data", "data:image/png;base64,"
    yield "wrong base64", "data:image/png;base64,@@@@"
    yield "base64 that ends within a byte", "data:image/png;base64,iVBORw0KGgo=A"
    yield "base64 with letters of no alphabet", "data:image/png;base64,ÄÖÜß"
    yield "a text for an image", "data:text/plain,this%20is%20a%20cat"
    yield "25 MB of base64", f"data:image/png;base64,{'A' * 34_000_000}"


def _parts() -> Iterator[tuple[str, Json]]:
    for name, value in (("null", None), ("a number", 7), ("a list", []), ("no url", {})):
        yield f"image_url is {name}", chat_image(value)
    yield "no image_url", {"type": "image_url"}
    yield "a url that is a number", chat_image({"url": 7})
    yield "a video", {"type": "video_url", "video_url": {"url": data_url(b"")}}
    yield "a sound", {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def _blocks() -> Iterator[tuple[str, Json]]:
    yield "a block without a source", {"type": "image"}
    yield "a block without data", {"type": "image", "source": {"type": "base64"}}
    yield "a block of a file", {"type": "image", "source": {"type": "file", "file_id": "f"}}
    url = {"type": "url", "url": "https://example.org/cat.png"}
    yield "a block of an address", {"type": "image", "source": url}
    yield "a block of wrong base64", anthropic_image("@@@@")
    yield "a block that is cut off", anthropic_image(small("PNG")[:60])
    yield "a block that is a script", anthropic_image(b"#!/bin/sh\nrm -rf /\n")
    bomb = next(data for name, data, _ in bad_images() if name == "PNG 20,000 x 20,000")
    yield "a block of 20,000 x 20,000", anthropic_image(bomb)


def _inputs() -> Iterator[tuple[str, Json]]:
    yield "an input without an image", {"type": "input_image"}
    yield "an input of a file", {"type": "input_image", "file_id": "file-1"}
    yield "an input of an address", _input("https://example.org/cat.png")
    yield "an input of wrong base64", _input("data:image/png;base64,@@@@")
    yield "an input that is cut off", _input(data_url(small("PNG")[:60]))


def _input(url: str) -> Json:
    return {"type": "input_image", "image_url": url}


def _odd() -> Iterator[tuple[str, bytes]]:
    """They are images, of kinds that a server may not take."""
    yield "JPEG in CMYK", encoded(Image.fromarray(noise(8, 8)).convert("CMYK"), "JPEG")
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    yield "PNG of 16 bits", encoded(Image.fromarray(deep), "PNG")
    yield "GIF animated", animated("GIF", 5)
    yield "WebP animated", animated("WEBP", 5)
    yield "PNG with alpha", encoded(Image.fromarray(noise(8, 8, 4)), "PNG")
    yield "PNG of one pixel", encoded(Image.fromarray(noise(1, 1)), "PNG")
    yield "PNG 1,000 times as wide as high", encoded(Image.fromarray(noise(1, 1000)), "PNG")
