"""Prepared images, and the base class of the families."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from omlx_server.errors import LoadFailed
from omlx_server.images.bitmap import Bitmap
from omlx_server.images.resize import Resample, resizer_version

_COLOURS = 3


def positive_int(config: Mapping[str, Any], name: str, default: int) -> int:
    """Return a whole number of at least 1, which may be written as 14.0."""
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1 or value % 1:
        raise wrong_field(name, value)
    return int(value)


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    return default if value is None else bool(value)


def mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_field(name, value)
    return value


def resample_filter(config: Mapping[str, Any], default: Resample) -> Resample:
    value = config.get("resample")
    try:
        return default if value is None else Resample(value)
    except ValueError:
        raise wrong_field("resample", value) from None


def check_resizes(config: Mapping[str, Any]) -> None:
    """Raise LoadFailed if images are to keep their size, which no tower takes."""
    if not flag(config, "do_resize", True):
        raise wrong_field("do_resize", config["do_resize"])


def colour_table(config: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Return [3, 256]: for each of red, green and blue the rescaled and normalised value of a
    byte, computed in the precision of transformers."""
    values = np.arange(256, dtype=np.float64)
    if flag(config, "do_rescale", True):
        values = values * _number(config, "rescale_factor", 1 / 255)
    table = np.tile(values.astype(np.float32), (_COLOURS, 1))
    if flag(config, "do_normalize", True):
        mean, deviation = (
            _values_per_colour(config, "image_mean"),
            _values_per_colour(config, "image_std"),
        )
        if not deviation.all():
            raise wrong_field("image_std", config["image_std"])
        table = (table - mean[:, None]) / deviation[:, None]
    return table


def apply_colours(
    table: npt.NDArray[np.float32],
    bitmaps: Sequence[npt.NDArray[np.uint8]],
    shape: tuple[int, ...],
) -> npt.NDArray[np.float32]:
    """Return [N, H, W, 3], the `shape`: the upper left corners of N bitmaps, their values mapped by
    the colour table."""
    array = np.empty(shape, dtype=np.float32)
    _, height, width, _ = shape
    for index, pixels in enumerate(bitmaps):
        for colour in range(_COLOURS):
            array[index, ..., colour] = table[colour][pixels[:height, :width, colour]]
    return array


def patch_size(model: Mapping[str, Any], default: int) -> int:
    return positive_int(mapping(model, "vision_config"), "patch_size", default)


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_field(name, value)
    return float(value)


def _values_per_colour(config: Mapping[str, Any], name: str) -> npt.NDArray[np.float32]:
    value = config.get(name)
    try:
        numbers = np.asarray(value, dtype=np.float32)
    except (TypeError, ValueError):
        raise wrong_field(name, value) from None
    if numbers.shape not in ((), (_COLOURS,)) or not np.isfinite(numbers).all():
        raise wrong_field(name, value)
    return np.broadcast_to(numbers, (_COLOURS,))


def wrong_field(name: str, value: object) -> LoadFailed:
    return LoadFailed(f"the model's images can't be prepared with {name} {value!r:.100}")


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
    """The shape of a prepared image. A run is a sequence of image tokens without text between:
    one, or one for each of the image's `tiles` (rows, columns) and one for the whole.

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

    pixels: Floats = field(repr=False)  # [runs, ...], or any shape if there is one run
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
