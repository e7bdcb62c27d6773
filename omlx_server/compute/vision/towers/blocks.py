"""Modules shared by towers; blocks and attention are Qwen-VL's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from omlx_server.compute.attention.all_to_all import attend
from omlx_server.compute.vision.towers.config import ACTIVATIONS
from omlx_server.compute.vision.towers.grids import Floats

EPS = 1e-6
"""The epsilon of all norms."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts of an image whose patches see only each other: `count` of equal size, or padded to one.

    With padding `places` int32 [count * S] has the patch of each place, `seen` bool [count, 1, 1,
    S] is False for padding, and `back` int32 [N] has the place of each patch. S: patches a part.
    """

    count: int
    places: mx.array | None = None
    seen: mx.array | None = None
    back: mx.array | None = None

    @classmethod
    def of(cls, sizes: Sequence[int]) -> "Parts":
        widest = max(sizes)
        if min(sizes) == widest:
            return cls(len(sizes))
        seen = np.arange(widest) < np.array(sizes)[:, None]
        starts = np.cumsum(sizes) - sizes
        places = np.where(seen, starts[:, None] + np.arange(widest), 0)
        back = np.flatnonzero(seen)
        return cls(
            len(sizes),
            mx.array(places.reshape(-1).astype(np.int32)),
            mx.array(seen[:, None, None]),
            mx.array(back.astype(np.int32)),
        )

    def attend(self, queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        """Attend within each part: arrays [N, H, D] to [N, H * D]."""
        heads, width = queries.shape[1:]
        queries, keys, values = map(self._split, (queries, keys, values))
        attended = attend(queries, keys, values, self.seen)
        joined = attended.transpose(0, 2, 1, 3).reshape(-1, heads * width)
        return joined if self.back is None else joined[self.back]

    def _split(self, array: mx.array) -> mx.array:
        placed = array if self.places is None else array[self.places]
        return placed.reshape(self.count, -1, *array.shape[1:]).transpose(0, 2, 1, 3)


@dataclass(frozen=True, slots=True, eq=False)
class PatchRotation:
    """Rotates queries or keys by place. `cosines` and `sines` are f32 [N, 1, D / 2]."""

    cosines: mx.array
    sines: mx.array

    @classmethod
    def of(cls, angles: Floats) -> "PatchRotation":
        by_patch = mx.array(angles)[:, None]
        return cls(mx.cos(by_patch), mx.sin(by_patch))

    def __call__(self, x: mx.array) -> mx.array:
        first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
        turned = [
            first * self.cosines - second * self.sines,
            second * self.cosines + first * self.sines,
        ]
        return mx.concatenate(turned, axis=-1).astype(x.dtype)


class TowerAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self._heads = heads

    def __call__(self, x: mx.array, rotate: PatchRotation, parts: Parts) -> mx.array:
        count, hidden = x.shape
        shape = count, 3, self._heads, hidden // self._heads
        queries, keys, values = self.qkv(x).reshape(shape).transpose(1, 0, 2, 3)
        output: mx.array = self.proj(parts.attend(rotate(queries), rotate(keys), values))
        return output


class TowerMlp(nn.Module):
    """Two linear layers, called `names` in checkpoints."""

    names = "fc1", "fc2"

    def __init__(self, hidden: int, intermediate: int, activation: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        first, second = self.names
        self[first] = nn.Linear(hidden, intermediate)
        self[second] = nn.Linear(intermediate, hidden)
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: mx.array) -> mx.array:
        first, second = self.names
        output: mx.array = self[second](self._activation(self[first](x)))
        return output


class TowerBlock(nn.Module):
    def __init__(self, hidden: int, heads: int, norm: Callable[..., Any], mlp: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.norm1 = norm(hidden, eps=EPS)
        self.norm2 = norm(hidden, eps=EPS)
        self.attn = TowerAttention(hidden, heads)
        self.mlp = mlp

    def __call__(self, x: mx.array, rotate: PatchRotation, parts: Parts) -> mx.array:
        x = x + self.attn(self.norm1(x), rotate, parts)
        output: mx.array = x + self.mlp(self.norm2(x))
        return output


class PatchEmbed(nn.Module):
    """A convolution whose kernel is its stride, as a product with patches [N, values]."""

    def __init__(self, kernel: tuple[int, ...], hidden: int, *, bias: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.proj = nn.Linear(prod(kernel), hidden, bias=bias)

    def __call__(self, pixels: mx.array) -> mx.array:
        output: mx.array = self.proj(pixels.astype(self.proj.weight.dtype))
        return output
