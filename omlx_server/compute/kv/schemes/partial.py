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
    """The base of a softmax's powers. Those of two take a third of `mx.exp`'s time on the CPU."""

    log: float  # of e, by which scores are multiplied
    power: Callable[[mx.array], mx.array]
    power_of_difference: Callable[[mx.array, mx.array], mx.array]

    @classmethod
    def fastest(cls) -> "PowerBase":
        if device.is_cpu():
            return cls(_LOG2_E, partial(mx.power, 2.0), lambda x, y: mx.power(2.0, x - y))
        return cls(1.0, mx.exp, _exp_of_difference)


@partial(mx.compile, shapeless=True)
def _exp_of_difference(x: mx.array, y: mx.array) -> mx.array:
    return mx.exp(x - y)


@partial(mx.compile, shapeless=True)
def _divide_by_weight(mixed: mx.array, weight: mx.array) -> mx.array:
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

    def unfold_rows(self, rows: int) -> "Partial":
        """Return [1, Hq, R * L, D] as [R, Hq, L, D]."""
        _, heads, folded, _ = self.top.shape
        shape = heads, rows, folded // rows, -1
        return Partial(*(array.reshape(shape).swapaxes(0, 1) for array in self.arrays))

    def merged_in_rows(self, rows: Sequence[int], other: "Partial") -> "Partial":
        if list(rows) == list(range(len(self.top))):
            return self.merged(other)
        indices = mx.array(list(rows))
        merged_rows = Partial(*(array[indices] for array in self.arrays)).merged(other)
        copies = [mx.array(array) for array in self.arrays]
        for array, new in zip(copies, merged_rows.arrays, strict=True):
            array[indices] = new
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

    def answer(self) -> mx.array:
        """Return f32 [B, Hq, L, Dv]. Less weight than 1 means that nothing is seen."""
        return _divide_by_weight(self.mixed, self.weight)
