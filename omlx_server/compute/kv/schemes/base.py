"""The interface of schemes, and attention over a part of the keys."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NotRequired, TypedDict, Unpack

import mlx.core as mx

from omlx_server.compute.hardware import device

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, eq=False)
class PowerBase:
    """The base of a softmax's powers. Those of two take a third of `mx.exp`'s time on the CPU."""

    log: float  # base ** (log * x) is e ** x
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


Arrays = tuple[mx.array, ...]
Mask = mx.array | str | None


class Scoring(TypedDict):
    """Options of attention."""

    scale: float
    # [B, Hq, L, T], boolean (True is seen) or added; or "causal": queries are the last L tokens.
    mask: Mask
    sinks: NotRequired[mx.array | None]  # scores [Hq] of one more token, of value 0


def views(arrays: Arrays, start: int, stop: int | None, row: int | None = None) -> Arrays:
    """Return views of tokens [start, stop) of arrays [R, H, T, F]."""
    rows = slice(row, None if row is None else row + 1)
    return tuple(array[rows, :, start:stop] for array in arrays)


class Scheme:
    """A stateless way to store keys and values in arrays [B, H, T, F], and attention on it. What
    is stored of a token depends on it alone. Attention must stay finite on hidden places."""

    is_fused: ClassVar[bool] = False  # `attend` is a kernel, for many queries faster than `part`

    @property
    def name(self) -> str:
        """Names all that the stored bytes depend on."""
        raise NotImplementedError

    def check(self, head_dim: int) -> None:
        """Raise ValueError for head sizes that cannot be stored."""

    def quantize(self, keys: mx.array, values: mx.array) -> tuple[Arrays, Arrays]:
        """Return the arrays to store, bit for bit those of the next two functions."""
        return self.quantize_keys(keys), self.quantize_values(values)

    def quantize_keys(self, x: mx.array) -> Arrays:
        """Return the arrays to store for keys [B, H, T, D] after RoPE."""
        raise NotImplementedError

    def quantize_values(self, x: mx.array) -> Arrays:
        """Return the arrays to store for values [B, H, T, D]."""
        raise NotImplementedError

    def attend(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> mx.array:
        """Attend queries [B, Hq, L, D]: [B, Hq, L, Dv] in the queries' dtype."""
        raise NotImplementedError

    def part(
        self, queries: mx.array, keys: Arrays, values: Arrays, **scoring: Unpack[Scoring]
    ) -> Partial:
        """Attend to some of a row's tokens. Sinks belong to one part only."""
        raise NotImplementedError

    def answer(self, merged: Partial, dtype: mx.Dtype) -> mx.array:
        """Return attention [B, Hq, L, Dv] from the merged parts of all tokens."""
        return merged.answer().astype(dtype)
