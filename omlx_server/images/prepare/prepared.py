"""Prepared images, and the base class of the families."""

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
from omlx_server.images.prepare.config import colour_table
from omlx_server.images.resize import resizer_version

Floats = npt.NDArray[np.float32]

# Part of every digest: raise it if the same image gives other pixels.
_VERSION = 1
LOW_TOKENS = 256
"""The most tokens of an image at low detail, where a model can choose."""


@dataclass(frozen=True, slots=True)
class Detail:
    """The detail of an image: at most `most_tokens`, and if `low` the whole image only, in at most
    LOW_TOKENS. None leaves it to the model."""

    most_tokens: int | None = None
    low: bool = False

    @property
    def token_limit(self) -> int | None:
        if not self.low:
            return self.most_tokens
        return min(LOW_TOKENS, self.most_tokens or LOW_TOKENS)


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """The shape of a prepared image. Its `tokens` are one run in the prompt, or one run for each of
    its `tiles` (rows, columns) and one for the whole image.

    `shape` is that of all runs' pixels; `grid` a run's frames, rows and columns of patches.
    Positions advance by `advance` behind a run. Preparing holds up to `working_bytes` beside image
    and result. `size` is the height and width to which the image is first resized.
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
        return self.tokens // self.runs

    @property
    def pixel_bytes(self) -> int:
        return 4 * prod(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """Pixels for the tower, of all runs. `digest` is 32 bytes over the image's digest and all
    parameters."""

    pixels: Floats = field(repr=False)
    plan: ImagePlan
    digest: bytes

    def of_run(self, number: int) -> Floats:
        return self.pixels if self.plan.runs == 1 else self.pixels[number : number + 1]


def run_digest(digest: bytes, plan: ImagePlan, number: int) -> bytes:
    if plan.runs == 1:
        return digest
    return hashlib.sha256(digest + number.to_bytes(4, "little")).digest()


class Preparer(ABC):
    """Prepares images for one model. Stateless; any thread."""

    family: str
    """The name of the family, a part of every digest."""
    whole = False
    """Whether a run is never split, as its tokens see each other in both directions."""

    def __init__(self, config: Mapping[str, Any], parameters: Mapping[str, object]) -> None:
        """`parameters` are those that change the pixels. Raises LoadFailed."""
        self._colours = colour_table(config)
        text = json.dumps([_VERSION, self.family, dict(parameters)], sort_keys=True)
        self._parameters = hashlib.sha256(text.encode() + self._colours.tobytes()).digest()

    @abstractmethod
    def plan(self, height: int, width: int) -> ImagePlan:
        """Raises BadRequest if the family can't take this size."""

    @abstractmethod
    def _pixels(self, bitmap: Bitmap, plan: ImagePlan) -> Floats: ...

    def prepare(self, bitmap: Bitmap) -> Prepared:
        plan = self.plan(bitmap.height, bitmap.width)
        return Prepared(self._pixels(bitmap, plan), plan, self.digest(bitmap.digest))

    def digest(self, of_bitmap: bytes) -> bytes:
        """Return the digest that `prepare` would give for a bitmap with this digest."""
        return hashlib.sha256(of_bitmap + self._parameters + resizer_version().encode()).digest()
