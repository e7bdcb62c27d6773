"""Decoding and preparing hold no more than they say before they begin."""

from typing import Any

import pytest
from PIL import Image

from tests.images.files import encoded, noise
from tests.images.memory import measured

TURNED = Image.Exif()
TURNED[0x0112] = 6
LARGE = Image.fromarray(noise(900, 1500))
FILES: dict[str, tuple[Image.Image, str, dict[str, Any]]] = {
    "PNG with alpha": (Image.fromarray(noise(900, 1500, 4)), "PNG", {"compress_level": 1}),
    "PNG with a palette": (LARGE.quantize(9), "PNG", {"transparency": bytes(5)}),
    "JPEG": (LARGE, "JPEG", {}),
    "JPEG turned": (LARGE, "JPEG", {"exif": TURNED}),
    "JPEG in scans": (LARGE.convert("CMYK"), "JPEG", {"progressive": True}),
    "WebP": (Image.fromarray(noise(900, 1500, 4)), "WEBP", {"lossless": True, "method": 0}),
    "GIF": (LARGE.quantize(9), "GIF", {"transparency": 3}),
}


@pytest.mark.parametrize("name", FILES)
def test_decoding_holds_no_more_than_the_header_says(name: str) -> None:
    image, kind, options = FILES[name]
    held, estimated = measured("decode", data=encoded(image, kind, **options))
    assert estimated / 4 < held <= estimated


def test_preparing_holds_no_more_than_the_plan_says() -> None:
    held, estimated = measured("prepare", data=encoded(LARGE, "JPEG"))
    assert estimated / 4 < held <= estimated
