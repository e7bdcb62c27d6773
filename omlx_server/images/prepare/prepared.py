"""What comes out of a preparation, and the part of it that all families share."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from omlx_server.images.bitmap import Bitmap
from omlx_server.images.prepare.config import colours
from omlx_server.images.resize import resizer_version

# Another one when a change of this package changes what is prepared from the same image.
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What an image of some size will take. `grid` and `tokens` are those of `Prepared`, `shape`
    is that of its pixels. `working_bytes` is the most that preparing holds at once, beside the
    image and the result."""

    grid: tuple[int, int, int]
    tokens: int
    shape: tuple[int, ...]
    working_bytes: int

    @property
    def pixel_bytes(self) -> int:
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """`pixels` are what the tower takes; their shape and the meaning of `grid` are the family's.
    `tokens` counts placeholders in the prompt. `digest` has 32 bytes, over the image's digest
    and all that makes the pixels out of it."""

    pixels: npt.NDArray[np.float32] = field(repr=False)
    grid: tuple[int, int, int]
    tokens: int
    digest: bytes


class Preparer(ABC):
    """Prepares images for one model. It keeps nothing of them and may be used by any thread."""

    # Name of the family. It is part of every digest.
    family: str

    def __init__(self, config: Mapping[str, Any], parameters: Mapping[str, object]) -> None:
        """`parameters` are those of the family that change the pixels. Raises LoadFailed."""
        self._colours = colours(config)
        text = json.dumps([_VERSION, self.family, dict(parameters)], sort_keys=True)
        self._about = hashlib.sha256(text.encode() + self._colours.tobytes()).digest()

    @abstractmethod
    def plan(self, height: int, width: int) -> Plan:
        """What an image of this size takes. Raises BadRequest if the family can't take its
        shape."""

    @abstractmethod
    def _pixels(self, bitmap: Bitmap, plan: Plan) -> npt.NDArray[np.float32]: ...

    def prepare(self, bitmap: Bitmap) -> Prepared:
        """Raises BadRequest if the family can't take the image's shape."""
        plan = self.plan(bitmap.height, bitmap.width)
        pixels = self._pixels(bitmap, plan)
        return Prepared(pixels, plan.grid, plan.tokens, self.digest(bitmap))

    def digest(self, bitmap: Bitmap) -> bytes:
        """The digest of what `prepare` makes of the bitmap, without making it."""
        about = self._about + resizer_version().encode()
        return hashlib.sha256(bitmap.digest + about).digest()
