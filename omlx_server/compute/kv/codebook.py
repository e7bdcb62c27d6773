"""The best scalar quantiser of N(0, 1) for each number of bits (Lloyd-Max), both ways.

To an index: the nearest level, by comparison with the midpoints, exact in float32.
From an index: a short odd rational function through the levels, since a table lookup costs
several times its arithmetic. Up to 3 bits it goes through each level; above, it misses them by
so little that the distortion grows by less than a thousandth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import mlx.core as mx
import numpy as np

MOST_BITS = 8

_BINS_PER_UNIT = 64
_REACH = 5
"""The lookup of many levels has bins over +-_REACH: beyond all midpoints, and so narrow that no
bin holds two."""


@cache
def levels(bits: int) -> np.ndarray:
    """The 2**bits levels, ascending and symmetric, f64, read-only. ValueError for other bits than
    1 to 8."""
    positive = _positive_levels(bits)
    both = np.concatenate([-positive[::-1], positive])
    both.setflags(write=False)
    return both


@cache
def midpoints(bits: int) -> np.ndarray:
    """The 2**bits - 1 borders between the levels' cells, ascending, f32, read-only."""
    all_levels = levels(bits)
    borders: np.ndarray = ((all_levels[1:] + all_levels[:-1]) / 2).astype(np.float32)
    borders.setflags(write=False)
    return borders


@cache
def distortion(bits: int) -> float:
    """The mean squared error of the levels on N(0, 1)."""
    positive = _positive_levels(bits)
    # E[(x - c)^2] = 1 - E[c^2] where each c is the mean of its cell.
    return float(1 - 2 * (positive**2 * _cells(positive).mass).sum())


def encode(x: mx.array, bits: int) -> mx.array:
    """x f32 of any shape as the index of the nearest level, u8. A midpoint goes down."""
    return _comparer(bits)(x) if bits <= 4 else _looked_up(x, bits)


@cache
def _comparer(bits: int) -> Callable[[mx.array], mx.array]:
    borders = [float(border) for border in midpoints(bits)]

    def compare(x: mx.array) -> mx.array:
        index = (x > borders[0]).astype(mx.uint8)
        for border in borders[1:]:
            index = index + (x > border).astype(mx.uint8)
        return index

    comparer: Callable[[mx.array], mx.array] = mx.compile(compare, shapeless=True)
    return comparer


def decode(index: mx.array, bits: int) -> mx.array:
    """The levels of an unsigned index of any shape, f32."""
    return _decoder(bits)(index)


@cache
def _decoder(bits: int) -> Callable[[mx.array], mx.array]:
    over, under = _curve(bits)
    half = 1 << bits >> 1

    def decode_index(index: mx.array) -> mx.array:
        # -1 to 1, odd about the middle of the levels.
        u = index.astype(mx.float32) * (1 / half) - (half - 0.5) / half
        square = u * u
        return u * _polynomial(square, over) / _polynomial(square, under)

    decoder: Callable[[mx.array], mx.array] = mx.compile(decode_index, shapeless=True)
    return decoder


def _polynomial(x: mx.array, coefficients: Sequence[float]) -> mx.array | float:
    value: mx.array | float = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def _looked_up(x: mx.array, bits: int) -> mx.array:
    """`encode` for many levels: the midpoints in bins below x's, then x against the one in it."""
    below, border = _bins(bits)
    bins = x * _BINS_PER_UNIT + _BINS_PER_UNIT * _REACH
    last = below.size - 1
    # Twice, since what a NaN becomes may be any integer, and indices are not checked.
    position = mx.minimum(mx.clip(bins, 0, last).astype(mx.uint32), last)
    return below[position] + (x > border[position]).astype(mx.uint8)


@cache
def _bins(bits: int) -> tuple[mx.array, mx.array]:
    """For each bin how many midpoints lie in lower ones, u8, and the midpoint in it, f32: inf
    where it has none."""
    count = 2 * _REACH * _BINS_PER_UNIT
    borders = midpoints(bits)
    # The same float32 arithmetic as on the values. It never decreases, so that a value and a
    # midpoint in different bins are in the order of their bins.
    scale, offset = np.float32(_BINS_PER_UNIT), np.float32(_BINS_PER_UNIT * _REACH)
    own = (borders * scale + offset).astype(np.int64)
    below = np.searchsorted(own, np.arange(count)).astype(np.uint8)
    border = np.full(count, np.inf, dtype=np.float32)
    border[own] = borders
    return mx.array(below), mx.array(border)


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of the positive levels under the density of N(0, 1)."""

    borders: np.ndarray
    """Lower ones, from 0."""
    mass: np.ndarray
    moment: np.ndarray
    """The integral of x."""
    density: np.ndarray
    """At the lower borders."""


def _cells(positive: np.ndarray) -> _Cells:
    borders = np.concatenate([[0.0], (positive[1:] + positive[:-1]) / 2])
    tail = np.array([math.erfc(border / math.sqrt(2)) / 2 for border in borders])
    density = np.exp(-(borders**2) / 2) / math.sqrt(2 * math.pi)
    mass = -np.diff(tail, append=0.0)
    moment = -np.diff(density, append=0.0)
    return _Cells(borders, mass, moment, density)


@cache
def _positive_levels(bits: int) -> np.ndarray:
    """The upper half of the levels: each is the mean of its cell, by Newton's method."""
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"no codebook of {bits} bits: 1 to {MOST_BITS}")
    count = 1 << bits >> 1
    # Many levels are spaced as the quantiles of a normal distribution with variance 3.
    wide = NormalDist(0, math.sqrt(3))
    positive = np.array([wide.inv_cdf(0.5 + (i + 0.5) / (2 * count)) for i in range(count)])
    for _ in range(40):
        cells = _cells(positive)
        positive = cells.moment / cells.mass
    for _ in range(20):
        step = _newton_step(positive)
        positive = positive - step
        if np.abs(step).max() < 1e-13:
            break
    return positive


def _newton_step(positive: np.ndarray) -> np.ndarray:
    """What to subtract from the levels so that level * mass = moment in each cell."""
    cells = _cells(positive)
    # A border moves by half of what the levels on its two sides do.
    from_above = (positive[:-1] - cells.borders[1:]) * cells.density[1:] / 2
    from_below = (cells.borders[1:] - positive[1:]) * cells.density[1:] / 2
    diagonal = cells.mass + np.append(from_above, 0) + np.append(0, from_below)
    jacobian = np.diag(diagonal) + np.diag(from_above, 1) + np.diag(from_below, -1)
    return np.linalg.solve(jacobian, positive * cells.mass - cells.moment)


@cache
def _curve(bits: int) -> tuple[list[float], list[float]]:
    """Coefficients, lowest powers first, of u * over(u^2) / under(u^2) through the levels at u from
    -1 to 1. No shorter ones miss them by as little, and longer ones exceed what fuses into one
    kernel."""
    over, under = {1: (1, 0), 2: (1, 1), 3: (2, 2), 4: (2, 2)}.get(bits, (4, 2))
    positive = _positive_levels(bits)
    u = (np.arange(positive.size) + 0.5) / positive.size
    mass = np.sqrt(_cells(positive).mass)
    weight = mass
    # Linear once multiplied by the denominator; the last one found takes that factor out again.
    for _ in range(30):
        powers = [u ** (2 * k + 1) for k in range(over)]
        powers += [-positive * u ** (2 * k) for k in range(1, under + 1)]
        columns = np.stack(powers, axis=1) * weight[:, None]
        found = np.linalg.lstsq(columns, positive * weight, rcond=None)[0].tolist()
        below = 1 + sum(found[over + k - 1] * u ** (2 * k) for k in range(1, under + 1))
        weight = mass / np.abs(below)
    return found[:over], [1.0, *found[over:]]
