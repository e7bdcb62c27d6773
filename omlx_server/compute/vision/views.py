"""Views of caches for one forward, in which tokens have other positions or see each other."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.kv.rows import shared_array
from omlx_server.compute.vision.rope import AxisPositions

View = Callable[[Sequence[Any]], Sequence[Any]]
"""Makes views of the caches of all layers."""


class MovedCache:
    """A cache with another `offset`: of the first token, of each row's first, int32 [B], or of
    each token."""

    def __init__(self, cache: Any, offset: int | mx.array | AxisPositions) -> None:
        self._cache = cache
        self.offset = offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


class BlocksCache:
    """A cache in whose next T tokens those of a block see each other: `visible` is bool [T, T]."""

    def __init__(self, cache: Any, visible: mx.array) -> None:
        self._cache = cache
        self._visible = visible

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """Return bool [N, K] of the next N tokens, the last of K keys."""
        mask = self._cache.make_mask(N, return_array=True, window_size=window_size)
        before = mask.shape[-1] - N
        return mx.concatenate([mask[:, :before], mask[:, before:] | self._visible], axis=-1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def at_positions(positions: AxisPositions) -> View:
    """The model needs `rope.use_axes`."""
    return lambda caches: [_moved(cache, positions) for cache in caches]


def moved(deltas: Sequence[int]) -> View:
    """Return a view for text whose row i is shifted by deltas[i]."""

    def view(caches: Sequence[Any]) -> Sequence[Any]:
        if not any(deltas):
            return caches
        offset = next(cache for cache in caches if not codec_of(cache).recurrent).offset
        by = deltas[0] if isinstance(offset, int) else shared_array(tuple(deltas))
        return [_moved(cache, offset + by) for cache in caches]

    return view


def _moved(cache: Any, offset: int | mx.array | AxisPositions) -> Any:
    return cache if codec_of(cache).recurrent else MovedCache(cache, offset)


def in_blocks(tokens: int, blocks: Sequence[tuple[int, int]]) -> View:
    """Return a view for one row, in which tokens [start, stop) of each block, all in the
    forward, see each other."""
    number = np.zeros(tokens, dtype=np.int32)
    for block, (start, stop) in enumerate(blocks, 1):
        number[start:stop] = block
    visible = mx.array((number[:, None] == number) & (number > 0))
    return lambda caches: [BlocksCache(cache, visible) for cache in caches]
