"""Least squares without negative factors, on relative errors. With a dozen rows and a handful of
columns each set of columns can be tried, so the best one is exact."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

# An estimate that is too low costs the process, one that is too high some waiting.
_WEIGHT_OF_UNDER = 30.0
_ROUNDS = 30
# Squared errors that differ by less are alike. Of sets that are alike the largest counts, so that
# columns which are multiples of each other share what they explain.
_ALIKE = 1e-9


def fit(rows: Sequence[Sequence[float]], measured: Sequence[float]) -> tuple[float, ...]:
    """Factors x >= 0 that make rows @ x as close to `measured` as can be, each row in proportion to
    what was measured, and then no less than any of it. A row that comes out too low weighs more, or
    else the last step would raise all rows for the sake of one.

    Raises:
        ValueError: there is nothing to fit, or something measured is not positive.
    """
    if not rows or min(measured) <= 0:
        raise ValueError("a fit needs measurements, each above zero")
    relative = np.array(rows, dtype=float) / np.array(measured)[:, None]
    scales = np.abs(relative).max(axis=0)
    scales[scales == 0] = 1.0
    found = _no_lower(relative / scales)
    lowest = float((relative / scales @ found).min())
    raised = found / lowest if 0 < lowest < 1 else found
    return tuple((raised / scales).tolist())


def _no_lower(rows: np.ndarray) -> np.ndarray:
    """x >= 0 with rows @ x near 1, and rather above than below."""
    weights = np.ones(len(rows))
    for _ in range(_ROUNDS):
        found = _non_negative(rows * weights[:, None], weights)
        last, weights = weights, np.where(rows @ found < 1, _WEIGHT_OF_UNDER, 1.0)
        if np.array_equal(weights, last):
            break
    return found


def _non_negative(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """x >= 0 with the least squared error of rows @ x: that of the columns whose own least squares
    are positive and come closest, with zeros for the others."""
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
