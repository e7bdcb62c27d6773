"""From the bytes of a file to a bitmap, in two steps: `inspect` finds out what it is, how large it
is and what decoding it will hold, and `decode` makes the pixels.

What a file is, its bytes say; a name or a media type that came with it counts for nothing.
"""

import numpy as np

from omlx_server.errors import BadRequest, how_to_install
from omlx_server.images.bitmap import Bitmap, Pixels
from omlx_server.images.formats import gif, jpeg, png, webp
from omlx_server.images.formats.header import ImageBounds, ImageHeader
from omlx_server.images.formats.refused import name_of

_BOUNDS = ImageBounds()
_TAKEN = "send a PNG, JPEG, WebP or GIF"


def inspect(data: bytes, *, param: str | None = None, bounds: ImageBounds = _BOUNDS) -> ImageHeader:
    """Find out what the file is, without decoding a pixel. Raises BadRequest if it is of another
    format, too large, or broken as far as can be seen."""
    try:
        return _read(data, bounds)
    except BadRequest as error:
        raise BadRequest(error.message, param=param) from None


def decode(header: ImageHeader, *, param: str | None = None) -> Bitmap:
    """Decode the pixels, which holds up to `header.peak_bytes`. Of an animation it is the first
    frame; alpha is laid over white; EXIF's orientation is applied. Raises BadRequest if the file
    is broken, or if the extra `vision` is not installed."""
    try:
        from omlx_server.images import pillow
    except ImportError:
        raise BadRequest(
            "this server can't decode images: it lacks the extra 'vision' "
            f"({how_to_install('vision')})",
            param=param,
        ) from None
    try:
        return Bitmap(upright(pillow.decode(header), header.orientation), header.upright)
    except BadRequest as error:
        raise BadRequest(error.message, param=param) from None


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """The pixels turned as EXIF's `orientation` asks, from 1 to 8."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _read(data: bytes, bounds: ImageBounds) -> ImageHeader:
    if data.startswith(png.SIGNATURE):
        return png.read(data, bounds)
    if data.startswith(jpeg.SIGNATURE):
        return jpeg.read(data, bounds)
    if data.startswith(gif.SIGNATURES):
        return gif.read(data, bounds)
    if webp.is_webp(data):
        return webp.read(data, bounds)
    name = name_of(data)
    if name is not None:
        raise BadRequest(f"the image is in a format that is not taken ({name}): {_TAKEN}")
    raise BadRequest(f"the image is in no format that is known: {_TAKEN}")
