"""Caches as one forward of a model sees them: tokens are at other positions, or see each other.

mlx-lm's models ask the cache of a layer for both, so no model is changed and no module keeps
anything of a request. What the forward writes goes into the caches themselves.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.kv.rows import shared_array
from omlx_server.compute.vision.rope import AxisPositions

View = Callable[[Sequence[Any]], Sequence[Any]]
"""Makes views of the caches of all layers, for one forward."""


class MovedCache:
    """The cache of one layer, whose next tokens are at `offset`: the first; the first of each row,
    int32 [B]; or each."""

    def __init__(self, cache: Any, offset: int | mx.array | AxisPositions) -> None:
        self._cache = cache
        self.offset = offset

    def __getattr__(self, name: str) -> Any:
        """All else is the cache's own."""
        return getattr(self._cache, name)


class BlocksCache:
    """The cache of one layer, in whose next tokens those of a block see each other, also those
    behind them. `together` is bool [T, T]."""

    def __init__(self, cache: Any, together: mx.array) -> None:
        self._cache = cache
        self._together = together

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """The mask bool [N, K] of the next N tokens, which are the last of the K keys."""
        mask = self._cache.make_mask(N, return_array=True, window_size=window_size)
        before = mask.shape[-1] - N
        return mx.concatenate([mask[:, :before], mask[:, before:] | self._together], axis=-1)

    def __getattr__(self, name: str) -> Any:
        """All else is the cache's own."""
        return getattr(self._cache, name)


def at_positions(positions: AxisPositions) -> View:
    """For a forward whose tokens have these positions. The model's rotary embeddings must know them
    (`rope.use_axes`)."""
    return lambda caches: [_moved(cache, positions) for cache in caches]


def moved(deltas: Sequence[int]) -> View:
    """For a forward of text, whose row i has positions that differ by deltas[i] from the numbers of
    its tokens. Those of attention must have the same tokens: in such models it is to all."""

    def view(caches: Sequence[Any]) -> Sequence[Any]:
        if not any(deltas):
            return caches
        offset = next(cache for cache in caches if not codec_of(cache).recurrent).offset
        by = deltas[0] if isinstance(offset, int) else shared_array(tuple(deltas))
        return [_moved(cache, offset + by) for cache in caches]

    return view


def _moved(cache: Any, offset: int | mx.array | AxisPositions) -> Any:
    """A recurrent state has no positions, and is left as it is."""
    return cache if codec_of(cache).recurrent else MovedCache(cache, offset)


def in_blocks(tokens: int, blocks: Sequence[tuple[int, int]]) -> View:
    """For a forward of one row of `tokens`, in which those from the first number to before the
    second of each block see each other. A block must be wholly in the forward."""
    number = np.zeros(tokens, dtype=np.int32)
    for block, (start, stop) in enumerate(blocks, 1):
        number[start:stop] = block
    together = mx.array((number[:, None] == number) & (number > 0))
    return lambda caches: [BlocksCache(cache, together) for cache in caches]
