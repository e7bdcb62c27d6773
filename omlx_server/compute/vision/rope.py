"""Rotary embeddings of tokens with positions on three axes (M-RoPE).

mlx-lm's attention calls `rope(x, offset=cache.offset)`. Where the cache is a view
(compute/vision/views.py), its offset may be `AxisPositions`, which an `AxisRope` knows. So the
positions belong to a forward, and modules keep nothing between forwards.
"""

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
    """How many frequencies of a head turn by time, by rows and by columns, in this order, or
    `interleaved`: one after the other in turns, as long as rows and columns have any left."""

    counts: tuple[int, int, int]
    interleaved: bool

    @classmethod
    def read(cls, config: Mapping[str, Any], *, interleaved: bool) -> "Sections":
        """Those in config.json, of the text model. Raises ModelUnavailable if there are none, or if
        they do not fit the width of a head."""
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
        """The axis, 0 to 2, by which each frequency of a head turns."""
        if not self.interleaved:
            return np.repeat(np.arange(3, dtype=np.int32), self.counts)
        found = np.zeros(sum(self.counts), dtype=np.int32)
        for axis in (1, 2):
            found[axis : 3 * self.counts[axis] : 3] = axis
        return found


class AxisPositions:
    """The positions of all tokens of a forward: `axes` are three arrays int32 [B * T]."""

    def __init__(self, rows: Sequence[Ints]) -> None:
        """Of each row its positions int32 [3, T]."""
        both = np.stack(rows, axis=1)
        self.axes = [mx.array(axis.reshape(-1)) for axis in both]


class AxisRope(nn.Module):
    """Stands in the place of a rotary embedding of mlx-lm. It leaves all rotations to that: three,
    of which it takes for each frequency the one of its axis. So tokens whose positions are equal on
    all axes are turned as they are without it."""

    def __init__(self, rope: Any, sections: Sections) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rope = rope
        self._axis = np.tile(sections.axes(), 2)

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """Of queries or keys [B, H, T, D], of which the first tokens are at `offset`, or each where
        `AxisPositions` say."""
        if not isinstance(offset, AxisPositions):
            found: mx.array = self.rope(x, offset=offset)
            return found
        rows, heads, count, width = x.shape
        apart = x.transpose(0, 2, 1, 3).reshape(rows * count, heads, 1, width)
        by_time, by_row, by_column = (self.rope(apart, offset=at) for at in offset.axes)
        # What is behind the frequencies is turned by none, and the same in all three.
        axis = mx.array(np.pad(self._axis, (0, width - len(self._axis))))
        turned = mx.where(axis == 0, by_time, mx.where(axis == 1, by_row, by_column))
        return turned.reshape(rows, count, heads, width).transpose(0, 2, 1, 3)


def use_axes(model: nn.Module, sections: Sections) -> None:
    """Put an `AxisRope` into each attention layer of a model."""
    for layer in model.layers:
        if "self_attn" in layer:
            layer.self_attn.rope = AxisRope(layer.self_attn.rope, sections)
