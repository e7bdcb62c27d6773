"""Idefics3 and SmolVLM: square tiles of the image, then the whole image."""

import math
from collections.abc import Mapping
from typing import Any

from omlx_server.images.bitmap import Bitmap, Pixels
from omlx_server.images.prepare import prepared as fields
from omlx_server.images.prepare.prepared import Detail, Floats, ImagePlan, Preparer
from omlx_server.images.resize import Resample, resize, resize_bytes

_LONGEST_EDGE = 4096
_DEFAULTS = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}


class Idefics3Preparer(Preparer):
    """Prepares [tiles, side, side, 3]: tiles row by row, then the whole image in a square, which is
    alone if it fits one tile and at low detail. `tokens` are those of all tiles.

    Pixels at the right and lower edge that fill no patch are left out. Tiles are full, so there are
    no padding masks.
    """

    family = "idefics3"

    def __init__(
        self, config: Mapping[str, Any], model: Mapping[str, Any], detail: Detail | None = None
    ) -> None:
        fields.check_resizes(config)
        self._longest_edge = fields.positive_int(
            fields.mapping(config, "size"), "longest_edge", 4 * 364
        )
        largest = fields.mapping(config, "max_image_size")
        self._side = fields.positive_int(largest, "longest_edge", 364)
        low = detail is not None and detail.low
        self._has_tiles = fields.flag(config, "do_image_splitting", True) and not low
        self._resample = fields.resample_filter(config, Resample.LANCZOS)
        self._tokens = fields.positive_int(config, "image_seq_len", _tokens_of_tile(model))
        self._patch = fields.patch_size(model, 14)
        parameters = {
            "size": [self._longest_edge, self._side, self._patch],
            "splits": self._has_tiles,
            "resample": self._resample,
        }
        super().__init__({**_DEFAULTS, **config}, parameters)

    def plan(self, height: int, width: int) -> ImagePlan:
        size = _with_longest_edge(height, width, self._longest_edge)
        rows, columns = self._tiles(*size)
        tiles, patches = rows * columns + 1, self._side // self._patch
        tiled_size = max(rows, 1) * self._side, max(columns, 1) * self._side
        return ImagePlan(
            grid=(1, patches, patches),
            tokens=tiles * self._tokens,
            shape=(tiles, patches * self._patch, patches * self._patch, 3),
            working_bytes=resize_bytes((height, width), size) + resize_bytes(size, tiled_size),
            advance=self._tokens,
            size=size,
            tiles=(rows, columns),
        )

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns of tiles; 0 and 0 if the whole image is the only tile."""
        if not self._has_tiles:
            return 0, 0
        side, ratio = self._side, width / height
        if width >= height:
            columns = math.ceil(width / side)
            rows = math.ceil(int(columns * side / ratio) / side)
        else:
            rows = math.ceil(height / side)
            columns = math.ceil(int(rows * side * ratio) / side)
        return (0, 0) if rows <= 1 and columns <= 1 else (rows, columns)

    def _pixels(self, bitmap: Bitmap, plan: ImagePlan) -> Floats:
        rows, columns = plan.tiles
        side = self._side
        image = resize(bitmap.pixels, *plan.size, self._resample)
        tiles: list[Pixels] = []
        if rows:
            image = resize(image, rows * side, columns * side, self._resample)
            by_tile = image.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4)
            tiles += list(by_tile.reshape(-1, side, side, 3))
        tiles.append(resize(image, side, side, self._resample))
        return fields.apply_colours(self._colours, tiles, plan.shape)


def _with_longest_edge(height: int, width: int, longest: int) -> tuple[int, int]:
    """Return height and width with that longest edge, 4,096 at most; the shorter one is even."""
    ratio = width / height
    if width >= height:
        short = int(longest / ratio)
        size = max(short + short % 2, 1), longest
    else:
        short = int(longest * ratio)
        size = longest, max(short + short % 2, 1)
    if longest <= _LONGEST_EDGE:
        return size
    ratio = size[1] / size[0]
    if width >= height:
        return max(int(_LONGEST_EDGE / ratio), 1), _LONGEST_EDGE
    return _LONGEST_EDGE, max(int(_LONGEST_EDGE * ratio), 1)


def _tokens_of_tile(model: Mapping[str, Any]) -> int:
    vision = fields.mapping(model, "vision_config")
    patches = fields.positive_int(vision, "image_size", 364) // fields.patch_size(model, 14)
    return max(1, patches**2 // fields.positive_int(model, "scale_factor", 2) ** 2)
