"""Decodes an image file in two steps: `inspect` finds format, size and memory, `decode` makes the
pixels.

The bytes decide on the format; names and media types are ignored.
"""

import numpy as np

from omlx_server.errors import BadRequest, how_to_install
from omlx_server.images.bitmap import Bitmap, Pixels
from omlx_server.images.formats import gif, jpeg, png, webp
from omlx_server.images.formats.header import ImageHeader
from omlx_server.images.formats.refused import name_of_refused

_SEND_OTHER = "send a PNG, JPEG, WebP or GIF"


def inspect(data: bytes) -> ImageHeader:
    """Read the header without decoding a pixel. Raises BadRequest if the format is unknown, or the
    image is too large or visibly broken."""
    if data.startswith(png.SIGNATURE):
        return png.read(data)
    if data.startswith(jpeg.SIGNATURE):
        return jpeg.read(data)
    if data.startswith(gif.SIGNATURES):
        return gif.read(data)
    if webp.is_webp(data):
        return webp.read(data)
    name = name_of_refused(data)
    if name is not None:
        raise BadRequest(f"the image is in a format that is not taken ({name}): {_SEND_OTHER}")
    raise BadRequest(f"the image is in no format that is known: {_SEND_OTHER}")


def decode(header: ImageHeader) -> Bitmap:
    """Decode the pixels, holding up to `header.peak_bytes`. First frame only, alpha over white,
    EXIF's orientation applied. Raises BadRequest if the file is broken or the extra `vision` is
    missing."""
    try:
        from omlx_server.images import pillow
    except ImportError:
        raise BadRequest(
            "this server can't decode images: it lacks the extra 'vision' "
            f"({how_to_install('vision')})"
        ) from None
    return Bitmap(upright(pillow.decode(header), header.orientation), header.upright)


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn and mirror stored pixels as EXIF's orientation (1 to 8) says."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
