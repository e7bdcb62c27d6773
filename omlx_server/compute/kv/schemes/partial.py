"""Attention to a part of what a row sees, to be merged with its other parts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from omlx_server.compute.hardware import device

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, eq=False)
class PowerBase:
    """In which base powers are taken. On the CPU backend those of two take a third of `mx.exp`, as
    in compute/attention/by_powers.py."""

    log: float
    power: Callable[[mx.array], mx.array]
    power_above: Callable[[mx.array, mx.array], mx.array]
    """The power of x - y, for arrays x and y."""

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
    """Attention of queries to a part of their tokens, in f32: `mixed` [B, Hq, L, Dv] is the
    weighted sum of the values, and `weight` [B, Hq, L, 1] the sum of the weights. A score of `top`
    [B, Hq, L, 1], the largest, has weight 1.

    Parts are merged by their log-sum-exp (Dao et al., FlashAttention, 2022)."""

    top: mx.array
    mixed: mx.array
    weight: mx.array

    @classmethod
    def concatenated(cls, parts: "Sequence[Partial]") -> "Partial":
        """The rows of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        arrays = zip(*(part.arrays for part in parts), strict=True)
        return cls(*(mx.concatenate(list(side)) for side in arrays))

    @property
    def arrays(self) -> tuple[mx.array, mx.array, mx.array]:
        return self.top, self.mixed, self.weight

    def unfolded(self, rows: int) -> "Partial":
        """The parts of so many rows, whose queries were folded into those of one."""
        _, heads, folded, _ = self.top.shape
        shape = heads, rows, folded // rows, -1
        return Partial(*(array.reshape(shape).swapaxes(0, 1) for array in self.arrays))

    def merged_at(self, rows: Sequence[int], other: "Partial") -> "Partial":
        """With what some of the rows see in another part."""
        if list(rows) == list(range(len(self.top))):
            return self.merged(other)
        places = mx.array(list(rows))
        some = Partial(*(array[places] for array in self.arrays)).merged(other)
        made = [mx.array(array) for array in self.arrays]
        for array, new in zip(made, some.arrays, strict=True):
            array[places] = new
        return Partial(*made)

    def merged(self, other: "Partial") -> "Partial":
        """What the same queries see in both parts together."""
        power = PowerBase.fastest().power
        top = mx.maximum(self.top, other.top)
        mine, theirs = power(self.top - top), power(other.top - top)
        return Partial(
            top,
            self.mixed * mine + other.mixed * theirs,
            self.weight * mine + other.weight * theirs,
        )

    def finished(self) -> mx.array:
        """The answer f32 [B, Hq, L, Dv], when all parts are merged. Finite where nothing is
        seen: what sees anything at all has a weight of at least 1."""
        return _weighed(self.mixed, self.weight)
