"""An image before it is decoded: its size and the memory that decoding takes."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from omlx_server.errors import BadRequest
from omlx_server.images import limits


class ImageFormat(StrEnum):
    PNG = "PNG"
    JPEG = "JPEG"
    WEBP = "WebP"
    GIF = "GIF"


# Bytes of a pixel in the array that is made of Pillow's image; rotating it needs a second array.
_ARRAY_BYTES = 3
_SMALL_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """An image before it is decoded. `width` and `height` are the file's, before EXIF's
    `orientation` (1 to 8). `data` is the file without unneeded parts. For each pixel Pillow holds
    `pillow_bytes` and its codec `codec_bytes`. Width and height are decoded at 1 / `scale`."""

    kind: ImageFormat
    width: int
    height: int
    data: bytes = field(repr=False)
    pillow_bytes: int
    orientation: int = 1
    scale: int = 1
    codec_bytes: int = 0

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def upright(self) -> tuple[int, int]:
        """Height and width as shown."""
        size = self.height, self.width
        return size if self.orientation < 5 else size[::-1]

    def scaled_for(self, height: int, width: int) -> "ImageHeader":
        """Return a header that decodes a JPEG at a half, a quarter or an eighth, with at least
        twice this height and width."""
        across, down = self.upright[1] // (2 * width), self.upright[0] // (2 * height)
        scales = [s for s in (8, 4, 2) if self.kind is ImageFormat.JPEG and s <= min(across, down)]
        return replace(self, scale=scales[0]) if scales else self

    @property
    def peak_bytes(self) -> int:
        """The most bytes that decoding holds, beside the incoming file."""
        each = self.pillow_bytes + _ARRAY_BYTES * (1 if self.orientation == 1 else 2)
        # A codec works in units of up to 32 x 32 pixels.
        padded = (self.width + 31) // 32 * 32 * ((self.height + 31) // 32 * 32)
        decoded = padded // self.scale**2 * each
        return decoded + padded * self.codec_bytes + 2 * len(self.data) + _SMALL_BYTES


def check_size(kind: ImageFormat, width: int, height: int) -> None:
    """Raise BadRequest if the image is empty or too large."""
    if width < 1 or height < 1:
        raise BadRequest(f"the {kind} has no pixels: it is {width} x {height}")
    most = None
    if width * height > limits.MOST_PIXELS:
        most = f"{limits.MOST_PIXELS / 1e6:g} million pixels are the most"
    elif max(width, height) > limits.MOST_EDGE:
        most = f"an edge may have {limits.MOST_EDGE} pixels"
    if most is not None:
        raise BadRequest(f"the image is too large: it is {width} x {height}, and {most}")


def cut_off(kind: ImageFormat) -> BadRequest:
    return BadRequest(f"the {kind} is cut off: its end is missing")


def broken(kind: ImageFormat, what: str) -> BadRequest:
    return BadRequest(f"the {kind} is broken: {what}")
