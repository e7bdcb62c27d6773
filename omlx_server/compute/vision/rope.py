"""Rotary embeddings of tokens with positions on three axes (M-RoPE), which a cache's view gives
as its offset."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute.vision.towers.grids import Ints
from omlx_server.errors import ModelUnavailable


@dataclass(frozen=True, slots=True)
class Sections:
    """The number of frequencies that turn by time, rows and columns: in sections, or
    `interleaved` while any are left."""

    counts: tuple[int, int, int]
    interleaved: bool

    @classmethod
    def read(cls, config: Mapping[str, Any], *, interleaved: bool) -> "Sections":
        """Raises ModelUnavailable for missing sections or ones that do not fit a head."""
        inner = config.get("text_config")
        text = inner if isinstance(inner, Mapping) else config
        scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
        counts = scaling.get("mrope_section") if isinstance(scaling, Mapping) else None
        if not isinstance(counts, list) or not all(type(c) is int and c >= 0 for c in counts):
            raise ModelUnavailable(f"config.json: mrope_section makes no sense: {counts!r}")
        heads = text.get("num_attention_heads") or 1
        width = text.get("head_dim") or text.get("hidden_size", 0) // heads
        share = scaling.get("partial_rotary_factor") or text.get("partial_rotary_factor") or 1
        half = int(width * share) // 2
        if len(counts) != 3 or sum(counts) != half:
            raise ModelUnavailable(
                f"config.json: mrope_section {counts} must have 3 parts, {half} frequencies in all"
            )
        return cls((counts[0], counts[1], counts[2]), interleaved)

    def axes(self) -> Ints:
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
        both = np.stack(rows, axis=1)
        self.axes = [mx.array(axis.reshape(-1)) for axis in both]


class AxisRope(nn.Module):
    """Rotates by each axis and takes for each frequency its own."""

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
