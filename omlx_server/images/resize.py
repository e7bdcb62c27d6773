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
    # Pillow has four bytes a pixel of the source, of the source at its new width, and of the
    # result; the returned array has three.
    between = source[0] * size[1]
    return 4 * (source[0] * source[1] + between) + 7 * size[0] * size[1]
