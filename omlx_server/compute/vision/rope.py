"""Positions of tokens that differ from their places in a cache: on three axes (M-RoPE), or shifted
behind an image. Wrapped caches give them to the rotary embeddings as their offset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute.codecs.registry import codec_of
from omlx_server.compute.kv.rows import shared_array
from omlx_server.compute.vision.towers.grids import Ints
from omlx_server.errors import ModelUnavailable

CacheWrapper = Callable[[Sequence[Any]], Sequence[Any]]
"""Wraps the caches of all layers for one forward."""


@dataclass(frozen=True, slots=True)
class Sections:
    """The number of frequencies that turn by time, rows and columns: one section after another, or
    `interleaved` while any are left."""

    counts: tuple[int, int, int]
    interleaved: bool

    @classmethod
    def read(cls, config: Mapping[str, Any], *, interleaved: bool) -> "Sections":
        """Raises ModelUnavailable for missing sections or ones that do not fit a head."""
        text_config = config.get("text_config")
        text = text_config if isinstance(text_config, Mapping) else config
        scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
        counts = scaling.get("mrope_section") if isinstance(scaling, Mapping) else None
        if not isinstance(counts, list) or not all(type(c) is int and c >= 0 for c in counts):
            raise ModelUnavailable(f"config.json: mrope_section makes no sense: {counts!r}")
        heads = text.get("num_attention_heads") or 1
        head_dim = text.get("head_dim") or text.get("hidden_size", 0) // heads
        rotated = scaling.get("partial_rotary_factor") or text.get("partial_rotary_factor") or 1
        frequencies = int(head_dim * rotated) // 2
        if len(counts) != 3 or sum(counts) != frequencies:
            raise ModelUnavailable(
                f"config.json: mrope_section {counts} must have 3 parts, "
                f"{frequencies} frequencies in all"
            )
        return cls((counts[0], counts[1], counts[2]), interleaved)

    def axes(self) -> Ints:
        """Return the axis of each frequency: 0 time, 1 rows, 2 columns."""
        if not self.interleaved:
            return np.repeat(np.arange(3, dtype=np.int32), self.counts)
        axes = np.zeros(sum(self.counts), dtype=np.int32)
        for axis in (1, 2):
            axes[axis : 3 * self.counts[axis] : 3] = axis
        return axes


class AxisPositions:
    """Positions of a forward's tokens: `axes` are three arrays int32 [B * T]."""

    def __init__(self, rows: Sequence[Ints]) -> None:
        """Each row has positions int32 [3, T]."""
        by_axis = np.stack(rows, axis=1)
        self.axes = [mx.array(axis.reshape(-1)) for axis in by_axis]


class AxisRope(nn.Module):
    """Rotates each frequency by the position on its own axis."""

    def __init__(self, rope: Any, sections: Sections) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rope = rope
        self._axis = np.tile(sections.axes(), 2)

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """Rotate x [B, H, T, D], whose first tokens are at `offset`, or all at `AxisPositions`."""
        if not isinstance(offset, AxisPositions):
            rotated: mx.array = self.rope(x, offset=offset)
            return rotated
        rows, heads, count, width = x.shape
        # Each token becomes a row of its own, as the model's rope takes one offset a row.
        apart = x.transpose(0, 2, 1, 3).reshape(rows * count, heads, 1, width)
        by_time, by_row, by_column = (self.rope(apart, offset=at) for at in offset.axes)
        # Coordinates behind the frequencies are not rotated.
        axis = mx.array(np.pad(self._axis, (0, width - len(self._axis))))
        turned = mx.where(axis == 0, by_time, mx.where(axis == 1, by_row, by_column))
        return turned.reshape(rows, count, heads, width).transpose(0, 2, 1, 3)


def use_axes(model: nn.Module, sections: Sections) -> None:
    for layer in model.layers:
        if "self_attn" in layer:
            layer.self_attn.rope = AxisRope(layer.self_attn.rope, sections)


class PositionedCache:
    """A cache with another `offset`: of the first token, of each row's first, int32 [B], or of
    each token."""

    def __init__(self, cache: Any, offset: int | mx.array | AxisPositions) -> None:
        self._cache = cache
        self.offset = offset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def at_positions(positions: AxisPositions) -> CacheWrapper:
    """Wrap caches so that the next tokens are at these positions. The model needs `use_axes`."""
    return lambda caches: [_with_offset(cache, positions) for cache in caches]


def shifted_by(deltas: Sequence[int]) -> CacheWrapper:
    """Wrap caches so that the next tokens of row i are deltas[i] positions further on."""

    def wrap(caches: Sequence[Any]) -> Sequence[Any]:
        if not any(deltas):
            return caches
        offset = next(cache for cache in caches if not codec_of(cache).recurrent).offset
        delta = deltas[0] if isinstance(offset, int) else shared_array(tuple(deltas))
        return [_with_offset(cache, offset + delta) for cache in caches]

    return wrap


def _with_offset(cache: Any, offset: int | mx.array | AxisPositions) -> Any:
    return cache if codec_of(cache).recurrent else PositionedCache(cache, offset)
