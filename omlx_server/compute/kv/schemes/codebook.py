"""The best scalar quantiser of N(0, 1) for each number of bits (Lloyd-Max). `decode` is an odd
rational function through the levels, faster than a table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import NormalDist

import mlx.core as mx
import numpy as np

MOST_BITS = 8

_BINS_PER_UNIT = 64
_REACH = 5  # bins lie between -_REACH and _REACH, beyond all midpoints; none holds two of these
_BINS = 2 * _REACH * _BINS_PER_UNIT


@cache
def levels(bits: int) -> np.ndarray:
    """Return 2**bits levels, ascending, f64. Raises ValueError unless bits are 1 to 8."""
    positive = _find_positive_levels(bits)
    both = np.concatenate([-positive[::-1], positive])
    both.setflags(write=False)
    return both


@cache
def midpoints(bits: int) -> np.ndarray:
    """Return the borders between cells, f32."""
    all_levels = levels(bits)
    borders: np.ndarray = ((all_levels[1:] + all_levels[:-1]) / 2).astype(np.float32)
    borders.setflags(write=False)
    return borders


@cache
def masses(bits: int) -> np.ndarray:
    """Return the share of N(0, 1) in each cell, f64."""
    positive = _cells_around(_find_positive_levels(bits)).mass
    both = np.concatenate([positive[::-1], positive])
    both.setflags(write=False)
    return both


def encode(x: mx.array, bits: int) -> mx.array:
    """Return the index u8 of the nearest level for x f32. A midpoint gets the lower level."""
    return _comparer(bits)(x) if bits <= 4 else _look_up(x, bits)


def encode_each(x: mx.array, bits: tuple[int, ...]) -> mx.array:
    """Encode part i of x f32 [N, B, H, T, D] in bits[i], at most 4, in one kernel."""
    counted: mx.array = _count_exceeded_in_parts(x, *_borders(bits))
    return counted


def squares_each(index: mx.array, bits: tuple[int, ...]) -> mx.array:
    """Return the squares f32 of the levels that `encode_each` chose."""
    part, table = _squares_of_parts(bits)
    return table[part, index]


def _count_exceeded(x: mx.array, borders: Sequence[mx.array | float]) -> mx.array:
    """Return how many borders x exceeds: the index of its level."""
    counts = [(x > border).astype(mx.uint8) for border in borders]
    # Added up in pairs: MLX puts no long chain of operations into one kernel.
    while len(counts) > 1:
        pairs = zip(counts[::2], counts[1::2], strict=False)
        unpaired = counts[len(counts) & ~1 :]
        counts = [a + b for a, b in pairs] + unpaired
    return counts[0]


@partial(mx.compile, shapeless=True)
def _count_exceeded_in_parts(x: mx.array, *borders: mx.array) -> mx.array:
    return _count_exceeded(x, borders)


@cache
def _comparer(bits: int) -> Callable[[mx.array], mx.array]:
    borders = [float(border) for border in midpoints(bits)]

    def compare(x: mx.array) -> mx.array:
        return _count_exceeded(x, borders)

    comparer: Callable[[mx.array], mx.array] = mx.compile(compare, shapeless=True)
    return comparer


@cache
def _borders(bits: tuple[int, ...]) -> list[mx.array]:
    """Return f32 [N, 1, 1, 1, 1], padded with inf."""
    borders = np.full(((1 << max(bits)) - 1, len(bits), 1, 1, 1, 1), np.inf, dtype=np.float32)
    for part, width in enumerate(bits):
        borders[: (1 << width) - 1, part, 0, 0, 0, 0] = midpoints(width)
    return [mx.array(border) for border in borders]


@cache
def _squares_of_parts(bits: tuple[int, ...]) -> tuple[mx.array, mx.array]:
    """Return u8 [N, 1, 1, 1, 1] and f32 [N, levels]."""
    part = np.arange(len(bits), dtype=np.uint8).reshape(-1, 1, 1, 1, 1)
    table = np.zeros((len(bits), 1 << max(bits)), dtype=np.float32)
    for number, width in enumerate(bits):
        table[number, : 1 << width] = np.array(squares(width))
    return mx.array(part), mx.array(table)


def decode(index: mx.array, bits: int) -> mx.array:
    """Return the levels f32 of these indices."""
    return _decoder(bits)(index)


@cache
def squares(bits: int) -> mx.array:
    """Return the squares f32 [2**bits] of decoded levels."""
    levels = decode(mx.arange(1 << bits).astype(mx.uint8), bits)
    squared = levels * levels
    mx.eval(squared)
    return squared


@cache
def _decoder(bits: int) -> Callable[[mx.array], mx.array]:
    over, under = _fit_curve(bits)
    half = 1 << bits >> 1

    def decode_index(index: mx.array) -> mx.array:
        # u is from -1 to 1, and 0 in the middle of the levels, where the function is odd.
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


def _look_up(x: mx.array, bits: int) -> mx.array:
    bins = _bins(bits)[_bin_of(x)]
    index: mx.array = _in_bin(x, bins[..., 0], bins[..., 1])
    return index


@partial(mx.compile, shapeless=True)
def _bin_of(x: mx.array) -> mx.array:
    bins = x * _BINS_PER_UNIT + _BINS_PER_UNIT * _REACH
    # Clipped twice, since a NaN may become any integer, and MLX checks no indices.
    return mx.minimum(mx.clip(bins, 0, _BINS - 1).astype(mx.uint32), _BINS - 1)


@partial(mx.compile, shapeless=True)
def _in_bin(x: mx.array, below: mx.array, border: mx.array) -> mx.array:
    return below.astype(mx.uint8) + (x > border).astype(mx.uint8)


@cache
def _bins(bits: int) -> mx.array:
    """Return f32 [bins, 2]: midpoints in lower bins, and the bin's own or inf."""
    borders = midpoints(bits)
    # The same float32 arithmetic as in `_bin_of`. It is monotonic, so bins order their values.
    scale, offset = np.float32(_BINS_PER_UNIT), np.float32(_BINS_PER_UNIT * _REACH)
    numbers = (borders * scale + offset).astype(np.int64)
    bins = np.full((_BINS, 2), np.inf, dtype=np.float32)
    bins[:, 0] = np.searchsorted(numbers, np.arange(_BINS))
    bins[numbers, 1] = borders
    return mx.array(bins)


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of positive levels, each with its lower border and the density there."""

    borders: np.ndarray
    mass: np.ndarray
    moment: np.ndarray  # the integral of x times the density
    density: np.ndarray


def _cells_around(positive: np.ndarray) -> _Cells:
    borders = np.concatenate([[0.0], (positive[1:] + positive[:-1]) / 2])
    tail = np.array([math.erfc(border / math.sqrt(2)) / 2 for border in borders])
    density = np.exp(-(borders**2) / 2) / math.sqrt(2 * math.pi)
    mass = -np.diff(tail, append=0.0)
    moment = -np.diff(density, append=0.0)
    return _Cells(borders, mass, moment, density)


@cache
def _find_positive_levels(bits: int) -> np.ndarray:
    """By Lloyd's iteration, then Newton's method."""
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"no codebook of {bits} bits: 1 to {MOST_BITS}")
    count = 1 << bits >> 1
    # Start at the quantiles of a normal distribution with variance 3.
    wide = NormalDist(0, math.sqrt(3))
    positive = np.array([wide.inv_cdf(0.5 + (i + 0.5) / (2 * count)) for i in range(count)])
    for _ in range(40):
        cells = _cells_around(positive)
        positive = cells.moment / cells.mass
    for _ in range(20):
        step = _newton_step(positive)
        positive = positive - step
        if np.abs(step).max() < 1e-13:
            break
    return positive


def _newton_step(positive: np.ndarray) -> np.ndarray:
    cells = _cells_around(positive)
    # A border moves by half of what the levels on its two sides do.
    from_above = (positive[:-1] - cells.borders[1:]) * cells.density[1:] / 2
    from_below = (cells.borders[1:] - positive[1:]) * cells.density[1:] / 2
    diagonal = cells.mass + np.append(from_above, 0) + np.append(0, from_below)
    jacobian = np.diag(diagonal) + np.diag(from_above, 1) + np.diag(from_below, -1)
    return np.linalg.solve(jacobian, positive * cells.mass - cells.moment)


@cache
def _fit_curve(bits: int) -> tuple[list[float], list[float]]:
    """Return the coefficients of u * over(u^2) / under(u^2). More don't fit a fused kernel."""
    over, under = {1: (1, 0), 2: (1, 1), 3: (2, 2), 4: (2, 2)}.get(bits, (4, 2))
    positive = _find_positive_levels(bits)
    u = (np.arange(positive.size) + 0.5) / positive.size
    mass = np.sqrt(_cells_around(positive).mass)
    weight = mass
    # The fit is linear after multiplying by the denominator; dividing the weights by the last
    # denominator takes that factor out again.
    for _ in range(30):
        powers = [u ** (2 * k + 1) for k in range(over)]
        powers += [-positive * u ** (2 * k) for k in range(1, under + 1)]
        columns = np.stack(powers, axis=1) * weight[:, None]
        factors = np.linalg.lstsq(columns, positive * weight, rcond=None)[0].tolist()
        below = 1 + sum(factors[over + k - 1] * u ** (2 * k) for k in range(1, under + 1))
        weight = mass / np.abs(below)
    return factors[:over], [1.0, *factors[over:]]
