"""Resizes with Pillow's filters, with which models were trained."""

from enum import IntEnum
from functools import cache
from importlib.metadata import version

from omlx_server.images.bitmap import Pixels


class Resample(IntEnum):
    """Filters by their numbers in `preprocessor_config.json`."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3
    BOX = 4
    HAMMING = 5


def resize(pixels: Pixels, height: int, width: int, resample: Resample) -> Pixels:
    """Resize [H, W, 3] to [height, width, 3]."""
    from omlx_server.images import pillow

    return pillow.resize(pixels, height, width, resample)


@cache
def resizer_version() -> str:
    return version("pillow")


def resize_bytes(source: tuple[int, int], size: tuple[int, int]) -> int:
    """Return the most bytes that resizing holds beside its input; sizes are (height, width)."""
    source_pixels = source[0] * source[1]
    widened_pixels = source[0] * size[1]  # Pillow resizes the width first
    pixels = size[0] * size[1]
    # Pillow has four bytes for each of these pixels; the returned array has three.
    return 4 * (source_pixels + widened_pixels + pixels) + 3 * pixels
