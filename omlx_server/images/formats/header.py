"""What is known about an image before it is decoded."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from omlx_server.errors import BadRequest


class ImageFormat(StrEnum):
    PNG = "PNG"
    JPEG = "JPEG"
    WEBP = "WebP"
    GIF = "GIF"


# A copy of the pixels as an array, beside what Pillow holds: three bytes a pixel. An orientation
# needs one copy more.
_ARRAY_BYTES = 3
_SMALL_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """`width` and `height` are as the file stores them, before `orientation` is applied, which is
    EXIF's: 1 to 8, where 1 is upright. `data` is the file without what its pixels don't need.
    `pillow_bytes` is the most that Pillow holds at once for each pixel. `deep` says that samples
    have 16 bits. Decoding makes one pixel of `scale` times `scale`; the codec holds `codec_bytes`
    for each of the file's."""

    kind: ImageFormat
    width: int
    height: int
    data: bytes = field(repr=False)
    pillow_bytes: int
    orientation: int = 1
    deep: bool = False
    scale: int = 1
    codec_bytes: int = 0

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def upright(self) -> tuple[int, int]:
        """Height and width of the image as it is shown."""
        size = self.height, self.width
        return size if self.orientation < 5 else size[::-1]

    def scaled_for(self, height: int, width: int) -> "ImageHeader":
        """Decode a JPEG with fewer pixels, if it will be resized to this size: at least twice as
        many in a row and in a column. Its codec makes an eighth of the work of them, at best."""
        across, down = self.upright[1] // (2 * width), self.upright[0] // (2 * height)
        scales = [s for s in (8, 4, 2) if self.kind is ImageFormat.JPEG and s <= min(across, down)]
        return replace(self, scale=scales[0]) if scales else self

    @property
    def peak_bytes(self) -> int:
        """The most bytes that decoding holds at once, beside the file that came in."""
        each = self.pillow_bytes + _ARRAY_BYTES * (1 if self.orientation == 1 else 2)
        # A codec works in units of up to 32 x 32 pixels.
        padded = (self.width + 31) // 32 * 32 * ((self.height + 31) // 32 * 32)
        made = padded // self.scale**2 * each
        return made + padded * self.codec_bytes + 2 * len(self.data) + _SMALL_BYTES


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """`most_pixels` is 50 million: a phone's 48 megapixels fit, and no model looks at more than 17
    million. Decoding so many holds up to 0.6 GB as a JPEG and 1.2 GB as a WebP. `most_scanned`
    bounds the work for a progressive JPEG, each of whose scans goes through all pixels; ordinary
    ones have about ten."""

    most_pixels: int = 50_000_000
    most_edge: int = 65_535
    most_scanned: int = 1_000_000_000


def check_size(kind: ImageFormat, width: int, height: int, bounds: ImageBounds) -> None:
    """Raises BadRequest if the size is nothing, or too much."""
    if width < 1 or height < 1:
        raise BadRequest(f"the {kind} has no pixels: it is {width} x {height}")
    most = None
    if width * height > bounds.most_pixels:
        most = f"{bounds.most_pixels / 1e6:g} million pixels are the most"
    elif max(width, height) > bounds.most_edge:
        most = f"an edge may have {bounds.most_edge} pixels"
    if most is not None:
        raise BadRequest(f"the image is too large: it is {width} x {height}, and {most}")


def cut_off(kind: ImageFormat) -> BadRequest:
    return BadRequest(f"the {kind} is cut off: its end is missing")


def broken(kind: ImageFormat, what: str) -> BadRequest:
    return BadRequest(f"the {kind} is broken: {what}")
