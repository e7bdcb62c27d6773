"""An image: its pixels, size and digest."""

import hashlib
import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Bitmap:
    """An image. `pixels` is [rows, columns, 3], RGB, read-only; fewer than in `size`, the image's
    height and width, if it was decoded scaled. `digest` is 32 bytes over size and pixels."""

    pixels: Pixels = field(repr=False)
    size: tuple[int, int] = (0, 0)
    digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        pixels = np.ascontiguousarray(self.pixels)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(f"these are no pixels of an image: {pixels.dtype} {pixels.shape}")
        pixels.flags.writeable = False
        size = self.size if all(self.size) else pixels.shape[:2]
        object.__setattr__(self, "size", size)
        digest = hashlib.sha256(struct.pack("<II", *size))
        digest.update(pixels.data)
        object.__setattr__(self, "pixels", pixels)
        object.__setattr__(self, "digest", digest.digest())

    @property
    def height(self) -> int:
        return self.size[0]

    @property
    def width(self) -> int:
        return self.size[1]
