"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of an image that keeps its aspect ratio."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from omlx_server.errors import BadRequest
from omlx_server.images.bitmap import Bitmap
from omlx_server.images.prepare import prepared as fields
from omlx_server.images.prepare.prepared import Detail, Floats, ImagePlan, Preparer
from omlx_server.images.resize import Resample, resize, resize_bytes

_LONGEST_RATIO = 200
# OpenAI's CLIP.
_DEFAULTS = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}


class QwenPreparer(Preparer):
    """Prepares [patches, 3 * T * P * P]: T frames of P x P pixels. The merge_size squared patches
    of a token are adjacent. Positions advance by the longer side."""

    family = "qwen"

    def __init__(
        self, config: Mapping[str, Any], model: Mapping[str, Any], detail: Detail | None = None
    ) -> None:
        fields.check_resizes(config)
        self._patch = fields.positive_int(config, "patch_size", 14)
        self._frames = fields.positive_int(config, "temporal_patch_size", 2)
        self._merge = fields.positive_int(config, "merge_size", 2)
        self._token_edge = self._patch * self._merge  # pixels
        self._least_pixels = _pixels_field(config, "min_pixels", "shortest_edge", 56 * 56)
        self._most_pixels = _pixels_field(config, "max_pixels", "longest_edge", 28 * 28 * 1280)
        if detail is not None and detail.token_limit is not None:
            limit = detail.token_limit * self._token_edge**2
            self._most_pixels = min(self._most_pixels, limit)
            self._least_pixels = min(self._least_pixels, self._most_pixels)
        self._resample = fields.resample_filter(config, Resample.BICUBIC)
        parameters = {
            "size": [self._least_pixels, self._most_pixels],
            "resample": self._resample,
            "layout": [self._patch, self._frames, self._merge],
        }
        super().__init__({**_DEFAULTS, **config}, parameters)

    def plan(self, height: int, width: int) -> ImagePlan:
        if max(height, width) > _LONGEST_RATIO * min(height, width):
            raise BadRequest(
                f"the image is too narrow for this model: one side of {width} x {height} is more "
                f"than {_LONGEST_RATIO} times the other"
            )
        size = fit_size(height, width, self._token_edge, self._least_pixels, self._most_pixels)
        rows, columns = size[0] // self._patch, size[1] // self._patch
        values = 3 * self._frames * self._patch**2
        return ImagePlan(
            grid=(1, rows, columns),
            tokens=rows * columns // self._merge**2,
            shape=(rows * columns, values),
            working_bytes=resize_bytes((height, width), size) + 6 * size[0] * size[1],
            advance=max(rows, columns) // self._merge,
            size=size,
        )

    def _pixels(self, bitmap: Bitmap, plan: ImagePlan) -> Floats:
        _, rows, columns = plan.grid
        patch, merge = self._patch, self._merge
        resized = resize(bitmap.pixels, *plan.size, self._resample)
        # (row of tokens, of patches, of pixels, column of tokens, of patches, of pixels, colour)
        by_place = resized.reshape(rows // merge, merge, patch, columns // merge, merge, patch, 3)
        patches = by_place.transpose(6, 0, 3, 1, 4, 2, 5).reshape(3, -1, 1, patch, patch)
        pixels = np.empty((rows * columns, 3, self._frames, patch, patch), dtype=np.float32)
        for colour in range(3):
            # Every frame of a patch shows the same.
            pixels[:, colour] = self._colours[colour][patches[colour]]
        return pixels.reshape(plan.shape)


def fit_size(height: int, width: int, unit: int, least: int, most: int) -> tuple[int, int]:
    """Return height and width in multiples of `unit`, with `least` to `most` pixels, near the
    aspect ratio."""
    rows, columns = round(height / unit) * unit, round(width / unit) * unit
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows = max(unit, math.floor(height / shrink / unit) * unit)
        columns = max(unit, math.floor(width / shrink / unit) * unit)
    elif rows * columns < least:
        grow = math.sqrt(least / (height * width))
        rows = math.ceil(height * grow / unit) * unit
        columns = math.ceil(width * grow / unit) * unit
    return rows, columns


def _pixels_field(config: Mapping[str, Any], name: str, edge: str, default: int) -> int:
    """Return a number of pixels: `name`, or in `size` the field `edge` or `name`."""
    size = fields.mapping(config, "size")
    in_size = fields.positive_int(size, edge, fields.positive_int(size, name, default))
    return fields.positive_int(config, name, in_size)
