"""The one file that imports Pillow: decodes checked files of four formats, and resizes.

Sizes were checked before, so Pillow's own guard against large images is not used.
"""

from io import BytesIO

import numpy as np
from PIL import Image, ImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from omlx_server.images.bitmap import Pixels
from omlx_server.images.formats.header import ImageFormat, ImageHeader, broken

_FILES: dict[ImageFormat, type[ImageFile.ImageFile]] = {
    ImageFormat.PNG: PngImageFile,
    ImageFormat.JPEG: JpegImageFile,
    ImageFormat.WEBP: WebPImageFile,
    ImageFormat.GIF: GifImageFile,
}
# Pillow's errors for broken files; on opening it turns all others into a SyntaxError.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError)
_ROWS = 64


def decode(header: ImageHeader) -> Pixels:
    """Return the pixels as the file stores them, before its orientation. Raises BadRequest."""
    try:
        file = _FILES[header.kind](BytesIO(header.data))
        if file.size != (header.width, header.height):
            raise broken(header.kind, "it has two sizes")
        if header.scale > 1:
            file.draft(None, (header.width // header.scale, header.height // header.scale))
        file.load()
        image = _over_white(file)
    except _BROKEN:
        raise broken(header.kind, "its data can't be decoded") from None
    del file
    return _array(image)


def _over_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _from_16_bits(image)
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    clear = image if image.mode == "RGBA" else image.convert("RGBA")
    white.paste(clear, mask=clear)
    return white


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Keep the high byte of 16-bit grey, as Pillow does for colours."""
    deep = np.asarray(image)
    grey = (deep >> 8).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[deep == transparent] = 255
    return Image.fromarray(grey).convert("RGB")


def _array(image: Image.Image) -> Pixels:
    """Copy a few rows at a time, so that no second copy is held."""
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top in range(0, image.height, _ROWS):
        bottom = min(top + _ROWS, image.height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, image.width, bottom)))
    return pixels


def resize(pixels: Pixels, height: int, width: int, resample: int) -> Pixels:
    image = Image.fromarray(pixels)
    return np.asarray(image.resize((width, height), Image.Resampling(resample)))
