"""Attention to a part of a row's tokens, to be merged with its other parts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from omlx_server.compute.hardware import device

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, eq=False)
class PowerBase:
    """Powers of two take a third of the time of `mx.exp` on the CPU backend."""

    log: float
    power: Callable[[mx.array], mx.array]
    power_above: Callable[[mx.array, mx.array], mx.array]
    """The power of x - y."""

    @classmethod
    def fastest(cls) -> "PowerBase":
        if device.is_cpu():
            return cls(_LOG2_E, partial(mx.power, 2.0), lambda x, y: mx.power(2.0, x - y))
        return cls(1.0, mx.exp, _exp_above)


@partial(mx.compile, shapeless=True)
def _exp_above(x: mx.array, y: mx.array) -> mx.array:
    return mx.exp(x - y)


@partial(mx.compile, shapeless=True)
def _weighed(mixed: mx.array, weight: mx.array) -> mx.array:
    return mixed / mx.maximum(weight, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Partial:
    """Attention of queries to some tokens, f32: weighted sum of values `mixed` [B, Hq, L, Dv],
    sum of weights `weight` [B, Hq, L, 1], and largest score `top`, whose weight is 1. Merged by
    log-sum-exp (Dao et al., FlashAttention, 2022)."""

    top: mx.array
    mixed: mx.array
    weight: mx.array

    @classmethod
    def concatenated(cls, parts: "Sequence[Partial]") -> "Partial":
        if len(parts) == 1:
            return parts[0]
        arrays = zip(*(part.arrays for part in parts), strict=True)
        return cls(*(mx.concatenate(list(side)) for side in arrays))

    @property
    def arrays(self) -> tuple[mx.array, mx.array, mx.array]:
        return self.top, self.mixed, self.weight

    def unfolded(self, rows: int) -> "Partial":
        _, heads, folded, _ = self.top.shape
        shape = heads, rows, folded // rows, -1
        return Partial(*(array.reshape(shape).swapaxes(0, 1) for array in self.arrays))

    def merged_at(self, rows: Sequence[int], other: "Partial") -> "Partial":
        if list(rows) == list(range(len(self.top))):
            return self.merged(other)
        places = mx.array(list(rows))
        some = Partial(*(array[places] for array in self.arrays)).merged(other)
        copies = [mx.array(array) for array in self.arrays]
        for array, new in zip(copies, some.arrays, strict=True):
            array[places] = new
        return Partial(*copies)

    def merged(self, other: "Partial") -> "Partial":
        power = PowerBase.fastest().power
        top = mx.maximum(self.top, other.top)
        mine, theirs = power(self.top - top), power(other.top - top)
        return Partial(
            top,
            self.mixed * mine + other.mixed * theirs,
            self.weight * mine + other.weight * theirs,
        )

    def finished(self) -> mx.array:
        """Return f32 [B, Hq, L, Dv]. Less weight than 1 means that nothing is seen."""
        return _weighed(self.mixed, self.weight)
