"""Decodes checked files of four formats, and resizes: the one file that imports Pillow.

Pillow's own guard against large images is not used, as sizes were checked before.
"""

from io import BytesIO

import numpy as np
from PIL import Image, ImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from omlx_server.images.bitmap import Pixels
from omlx_server.images.formats.header import ImageFormat, ImageHeader

_FILES: dict[ImageFormat, type[ImageFile.ImageFile]] = {
    ImageFormat.PNG: PngImageFile,
    ImageFormat.JPEG: JpegImageFile,
    ImageFormat.WEBP: WebPImageFile,
    ImageFormat.GIF: GifImageFile,
}
# Pillow's errors for broken files; on opening it turns all others into a SyntaxError.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError)
_COPIED_ROWS = 64


def decode(header: ImageHeader) -> Pixels:
    """Return the pixels as the file stores them, before its orientation. Raises BadRequest."""
    try:
        file = _FILES[header.kind](BytesIO(header.data))
        if file.size != (header.width, header.height):
            raise header.kind.broken("it has two sizes")
        if header.scale > 1:
            file.draft(None, (header.width // header.scale, header.height // header.scale))
        file.load()
        image = _rgb_over_white(file)
    except _BROKEN:
        raise header.kind.broken("its data can't be decoded") from None
    del file  # its memory is free before the pixels are copied
    return _copy_pixels(image)


def _rgb_over_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _rgb_of_16_bit_grey(image)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    with_alpha = image if image.mode == "RGBA" else image.convert("RGBA")
    white.paste(with_alpha, mask=with_alpha)
    return white


def _rgb_of_16_bit_grey(image: Image.Image) -> Image.Image:
    """Keep the high bytes, as Pillow does for colours. Transparent pixels are white."""
    values = np.asarray(image)
    grey = (values >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _copy_pixels(image: Image.Image) -> Pixels:
    """Copy a few rows at a time, so that no second copy is held."""
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top in range(0, image.height, _COPIED_ROWS):
        bottom = min(top + _COPIED_ROWS, image.height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, image.width, bottom)))
    return pixels


def resize(pixels: Pixels, height: int, width: int, resample: int) -> Pixels:
    image = Image.fromarray(pixels)
    return np.asarray(image.resize((width, height), Image.Resampling(resample)))
