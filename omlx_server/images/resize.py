"""Resizes pixels with Pillow's filters, which is what models were trained with."""

from enum import IntEnum
from functools import cache
from importlib.metadata import version

from omlx_server.images.bitmap import Pixels


class Resample(IntEnum):
    """The numbers of filters in `preprocessor_config.json`."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3
    BOX = 4
    HAMMING = 5


def resize(pixels: Pixels, height: int, width: int, resample: Resample) -> Pixels:
    """[height, width, 3] of [H, W, 3]."""
    from omlx_server.images import pillow

    return pillow.resize(pixels, height, width, resample)


@cache
def resizer_version() -> str:
    """What resized pixels depend on beside the parameters."""
    return version("pillow")


def resize_bytes(source: tuple[int, int], size: tuple[int, int]) -> int:
    """The most bytes that resizing holds at once, beside the pixels that come in; sizes are
    (height, width). Pillow has four bytes a pixel, of the source, of the source at its new width,
    and of the result; the array that comes out has three."""
    between = source[0] * size[1]
    return 4 * (source[0] * source[1] + between) + 7 * size[0] * size[1]
