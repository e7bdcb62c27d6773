"""Non-negative least squares on relative errors. With few columns every set of them is tried."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

# An estimate that is too low can kill the process; one that is too high makes requests wait.
_WEIGHT_OF_UNDER = 30.0
_ROUNDS = 30
# Squared errors closer than this are equal, and then the larger set of columns wins, so that
# proportional columns share what they explain.
_ALIKE = 1e-9


def fit(rows: Sequence[Sequence[float]], measured: Sequence[float]) -> tuple[float, ...]:
    """Return factors x >= 0, for which rows @ x is close to `measured` and never below. Raises
    ValueError for no rows, or a measured value that is not positive."""
    if not rows or min(measured) <= 0:
        raise ValueError("a fit needs measurements, each above zero")
    relative = np.array(rows, dtype=float) / np.array(measured)[:, None]
    scales = np.abs(relative).max(axis=0)
    scales[scales == 0] = 1.0
    factors = _no_lower(relative / scales)
    lowest = float((relative / scales @ factors).min())
    if 0 < lowest < 1:
        factors = factors / lowest
    return tuple((factors / scales).tolist())


def _no_lower(rows: np.ndarray) -> np.ndarray:
    weights = np.ones(len(rows))
    for _ in range(_ROUNDS):
        factors = _non_negative(rows * weights[:, None], weights)
        last, weights = weights, np.where(rows @ factors < 1, _WEIGHT_OF_UNDER, 1.0)
        if np.array_equal(weights, last):
            break
    return factors


def _non_negative(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    width = rows.shape[1]
    best, least = np.zeros(width), float(wanted @ wanted)
    for count in range(1, width + 1):
        for columns in map(list, combinations(range(width), count)):
            solved = np.linalg.lstsq(rows[:, columns], wanted, rcond=None)[0]
            off = rows[:, columns] @ solved - wanted
            error = float(off @ off)
            if solved.min() > 0 and error <= least + _ALIKE:
                best, least = np.zeros(width), error
                best[columns] = solved
    return best
