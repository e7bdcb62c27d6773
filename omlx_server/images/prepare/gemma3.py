"""Gemma 3: each image becomes a square with a fixed number of tokens."""

from collections.abc import Mapping
from typing import Any

from omlx_server.images.bitmap import Bitmap
from omlx_server.images.prepare import prepared as fields
from omlx_server.images.prepare.prepared import Detail, Floats, ImagePlan, Preparer
from omlx_server.images.resize import Resample, resize, resize_bytes

_DEFAULTS = {"image_mean": (0.5, 0.5, 0.5), "image_std": (0.5, 0.5, 0.5)}


class Gemma3Preparer(Preparer):
    """Prepares [1, height, width, 3], without pixels that fill no patch. Detail changes nothing.
    Pan and scan, which published models switch off, is unsupported."""

    family = "gemma3"
    whole = True

    def __init__(
        self, config: Mapping[str, Any], model: Mapping[str, Any], detail: Detail | None = None
    ) -> None:
        fields.check_resizes(config)
        if fields.flag(config, "do_pan_and_scan", False):
            raise fields.wrong_field("do_pan_and_scan", True)
        size = fields.mapping(config, "size")
        height = fields.positive_int(size, "height", 224)
        self._size = height, fields.positive_int(size, "width", 224)
        self._resample = fields.resample_filter(config, Resample.BILINEAR)
        self._tokens = fields.positive_int(
            config, "image_seq_length", fields.positive_int(model, "mm_tokens_per_image", 256)
        )
        self._patch = fields.patch_size(model, 14)
        parameters = {"size": self._size, "patch": self._patch, "resample": self._resample}
        super().__init__({**_DEFAULTS, **config}, parameters)

    def plan(self, height: int, width: int) -> ImagePlan:
        rows, columns = (edge // self._patch for edge in self._size)
        return ImagePlan(
            grid=(1, rows, columns),
            tokens=self._tokens,
            shape=(1, rows * self._patch, columns * self._patch, 3),
            working_bytes=resize_bytes((height, width), self._size),
            advance=self._tokens,
            size=self._size,
        )

    def _pixels(self, bitmap: Bitmap, plan: ImagePlan) -> Floats:
        resized = resize(bitmap.pixels, *self._size, self._resample)
        return fields.apply_colours(self._colours, [resized], plan.shape)
