"""Non-negative least squares on relative errors. With few columns every set of them is tried."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

# An estimate that is too low can kill the process; one that is too high makes requests wait.
_WEIGHT_OF_TOO_LOW = 30.0
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
    factors = _fit_no_lower(relative / scales)
    # What is still below a measurement, relative to it, lifts all factors.
    lowest = float((relative / scales @ factors).min())
    if 0 < lowest < 1:
        factors = factors / lowest
    return tuple((factors / scales).tolist())


def _fit_no_lower(rows: np.ndarray) -> np.ndarray:
    """Fit rows to ones. In the next round, rows below one weigh more."""
    weights = np.ones(len(rows))
    for _ in range(_ROUNDS):
        factors = _fit_non_negative(rows * weights[:, None], weights)
        old_weights, weights = weights, np.where(rows @ factors < 1, _WEIGHT_OF_TOO_LOW, 1.0)
        if np.array_equal(weights, old_weights):
            break
    return factors


def _fit_non_negative(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    width = rows.shape[1]
    best, least_error = np.zeros(width), float(targets @ targets)
    for count in range(1, width + 1):
        for columns in map(list, combinations(range(width), count)):
            solved = np.linalg.lstsq(rows[:, columns], targets, rcond=None)[0]
            residuals = rows[:, columns] @ solved - targets
            error = float(residuals @ residuals)
            if solved.min() > 0 and error <= least_error + _ALIKE:
                best, least_error = np.zeros(width), error
                best[columns] = solved
    return best
