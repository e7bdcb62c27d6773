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

    def broken(self, problem: str) -> BadRequest:
        return BadRequest(f"the {self} is broken: {problem}")

    def cut_off(self) -> BadRequest:
        return BadRequest(f"the {self} is cut off: its end is missing")


_ARRAY_BYTES = 3  # of a pixel in the array that is made of Pillow's image
_OTHER_BYTES = 1024 * 1024  # that decoding holds, however small the image is


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """An image before it is decoded.

    `width` and `height` are the file's, before EXIF's `orientation` (1 to 8). `data` is the file
    without unneeded parts. For each pixel Pillow holds `pillow_bytes` and its codec `codec_bytes`.
    Width and height are decoded at 1 / `scale`.
    """

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
        """Return the header for an image that is shown in this size: a large JPEG is decoded at an
        eighth, a quarter or a half, still at least twice as high and wide."""
        if self.kind is not ImageFormat.JPEG:
            return self
        shown_height, shown_width = self.upright
        largest = min(shown_height // (2 * height), shown_width // (2 * width))
        scale = next((scale for scale in (8, 4, 2) if scale <= largest), self.scale)
        return replace(self, scale=scale)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that decoding holds, beside the incoming file."""
        arrays = 1 if self.orientation == 1 else 2  # rotating makes another one
        pixel_bytes = self.pillow_bytes + arrays * _ARRAY_BYTES
        # A codec works in units of up to 32 x 32 pixels.
        file_pixels = (self.width + 31) // 32 * 32 * ((self.height + 31) // 32 * 32)
        decoded_bytes = file_pixels // self.scale**2 * pixel_bytes
        codec_bytes = file_pixels * self.codec_bytes
        return decoded_bytes + codec_bytes + 2 * len(self.data) + _OTHER_BYTES


def check_size(kind: ImageFormat, width: int, height: int) -> None:
    """Raise BadRequest if the image is empty or too large."""
    if width < 1 or height < 1:
        raise BadRequest(f"the {kind} has no pixels: it is {width} x {height}")
    if width * height > limits.MOST_PIXELS:
        limit = f"{limits.MOST_PIXELS / 1e6:g} million pixels are the most"
    elif max(width, height) > limits.MOST_EDGE:
        limit = f"an edge may have {limits.MOST_EDGE} pixels"
    else:
        return
    raise BadRequest(f"the image is too large: it is {width} x {height}, and {limit}")
