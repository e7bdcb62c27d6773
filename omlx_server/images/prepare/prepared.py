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

Floats = npt.NDArray[np.float32]

# Another one when a change of this package changes what is prepared from the same image.
_VERSION = 1
LOW_TOKENS = 256
"""The most tokens of an image at low detail, where a model can choose."""


@dataclass(frozen=True, slots=True)
class Detail:
    """How closely a model looks at an image. It gets at most `most_tokens` where the model's images
    may have more or fewer of them; None leaves that to the model. With `low` it is looked at as a
    whole only, in at most LOW_TOKENS."""

    most_tokens: int | None = None
    low: bool = False

    @property
    def most(self) -> int | None:
        """The most tokens of an image; None for as many as the model takes."""
        if not self.low:
            return self.most_tokens
        return min(LOW_TOKENS, self.most_tokens or LOW_TOKENS)


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What an image of some size takes. In the prompt its `tokens` are one run, or where it is cut
    into `tiles` (rows and columns of them) one run for each tile, then one for the whole image.

    `shape` is that of its pixels, of all runs one after the other. `grid` counts the patches of one
    run: frames, rows, columns. Behind a run positions are `advance` ahead. `working_bytes` is the
    most that preparing holds at once, beside the image and the result. The image is first resized
    to `size`, which is height and width.
    """

    grid: tuple[int, int, int]
    tokens: int
    shape: tuple[int, ...]
    working_bytes: int
    advance: int
    size: tuple[int, int]
    tiles: tuple[int, int] = (0, 0)

    @property
    def runs(self) -> int:
        return self.tiles[0] * self.tiles[1] + 1

    @property
    def run_tokens(self) -> int:
        """How many tokens one run has."""
        return self.tokens // self.runs

    @property
    def pixel_bytes(self) -> int:
        """The size of the pixels of all runs."""
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """`pixels` are what the tower takes, of all runs, as `plan` says. `digest` has 32 bytes, over
    the image's digest and all that makes the pixels out of it."""

    pixels: Floats = field(repr=False)
    plan: ImagePlan
    digest: bytes

    def of_run(self, number: int) -> Floats:
        """The pixels of one run. A view."""
        return self.pixels if self.plan.runs == 1 else self.pixels[number : number + 1]


def run_digest(digest: bytes, plan: ImagePlan, number: int) -> bytes:
    """The digest of a run's pixels, from that of the image: the same where it has one run."""
    if plan.runs == 1:
        return digest
    return hashlib.sha256(digest + number.to_bytes(4, "little")).digest()


class Preparer(ABC):
    """Prepares images for one model. It keeps nothing of them and may be used by any thread."""

    # Name of the family. It is part of every digest.
    family: str
    # Whether the tokens of a run see each other in both directions.
    whole = False

    def __init__(self, config: Mapping[str, Any], parameters: Mapping[str, object]) -> None:
        """`parameters` are those of the family that change the pixels. Raises LoadFailed."""
        self._colours = colours(config)
        text = json.dumps([_VERSION, self.family, dict(parameters)], sort_keys=True)
        self._about = hashlib.sha256(text.encode() + self._colours.tobytes()).digest()

    @abstractmethod
    def plan(self, height: int, width: int) -> ImagePlan:
        """What an image of this size takes. Raises BadRequest if the family can't take its
        shape."""

    @abstractmethod
    def _pixels(self, bitmap: Bitmap, plan: ImagePlan) -> Floats: ...

    def prepare(self, bitmap: Bitmap) -> Prepared:
        """Raises BadRequest if the family can't take the image's shape."""
        plan = self.plan(bitmap.height, bitmap.width)
        return Prepared(self._pixels(bitmap, plan), plan, self.digest(bitmap.digest))

    def digest(self, of_bitmap: bytes) -> bytes:
        """The digest of what `prepare` makes of the bitmap with this digest, without making it."""
        about = self._about + resizer_version().encode()
        return hashlib.sha256(of_bitmap + about).digest()
