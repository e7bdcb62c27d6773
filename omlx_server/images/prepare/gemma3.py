"""Gemma 3: the image is squeezed into a square, which always takes as many tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from omlx_server.images.bitmap import Bitmap
from omlx_server.images.prepare import config as fields
from omlx_server.images.prepare.prepared import Plan, Preparer
from omlx_server.images.resize import Resample, resize, resize_bytes

_DEFAULTS = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}


class Gemma3Preparer(Preparer):
    """`pixels` is [1, 3, height, width]. `grid` is (1, 1, 1).

    Cutting long images into further squares, which Gemma calls pan and scan, is not done; it is
    off in the published models.
    """

    family = "gemma3"

    def __init__(self, config: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        fields.must_resize(config)
        if fields.flag(config, "do_pan_and_scan", False):
            raise fields.wrong("do_pan_and_scan", True)
        size = fields.mapping(config, "size")
        self._size = fields.whole(size, "height", 224), fields.whole(size, "width", 224)
        self._resample = fields.resample(config, Resample.BILINEAR)
        self._tokens = fields.whole(
            config, "image_seq_length", fields.whole(model, "mm_tokens_per_image", 256)
        )
        parameters = {"size": self._size, "resample": self._resample}
        super().__init__({**_DEFAULTS, **config}, parameters)

    def plan(self, height: int, width: int) -> Plan:
        return Plan(
            grid=(1, 1, 1),
            tokens=self._tokens,
            shape=(1, 3, *self._size),
            working_bytes=resize_bytes((height, width), self._size),
        )

    def _pixels(self, bitmap: Bitmap, plan: Plan) -> npt.NDArray[np.float32]:
        small = resize(bitmap.pixels, *self._size, self._resample)
        pixels = np.empty(plan.shape, dtype=np.float32)
        for colour in range(3):
            pixels[0, colour] = self._colours[colour][small[:, :, colour]]
        return pixels
