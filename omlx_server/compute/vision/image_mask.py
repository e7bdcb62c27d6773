"""The attention mask of Gemma 3, under which the tokens of one image see each other."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_server.compute.vision.rope import CacheWrapper


class ImageMaskCache:
    """A cache whose mask also shows each of the next T tokens those that are `visible` to it,
    bool [T, T]."""

    def __init__(self, cache: Any, visible: mx.array) -> None:
        self._cache = cache
        self._visible = visible

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """Return bool [N, K] for the next N tokens, which are the last of K keys."""
        causal = self._cache.make_mask(N, return_array=True, window_size=window_size)
        before = causal.shape[-1] - N
        return mx.concatenate([causal[:, :before], causal[:, before:] | self._visible], axis=-1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def with_image_mask(tokens: int, images: Sequence[tuple[int, int]]) -> CacheWrapper:
    """Wrap caches for a forward of one row of `tokens`, in which the tokens [start, stop) of each
    image see each other."""
    image_numbers = np.zeros(tokens, dtype=np.int32)  # 0 for text
    for number, (start, stop) in enumerate(images, 1):
        image_numbers[start:stop] = number
    same_image = image_numbers[:, None] == image_numbers
    visible = mx.array(same_image & (image_numbers > 0))
    return lambda caches: [ImageMaskCache(cache, visible) for cache in caches]
