"""Least squares without negative coefficients, on relative errors: Lawson and Hanson's active set,
Solving Least Squares Problems (1974), chapter 23. A dozen rows, a handful of columns."""

from collections.abc import Sequence

Row = Sequence[float]

_TINY = 1e-10
# An estimate that is too low costs the process, one that is too high some waiting.
_WEIGHT_OF_UNDER = 30.0
_ROUNDS = 30


def fit(rows: Sequence[Row], measured: Sequence[float]) -> tuple[float, ...]:
    """Coefficients x >= 0 that make rows @ x as close to `measured` as can be, each row in
    proportion to what was measured, and then no less than any of it. A row that comes out too low
    weighs more, or else the last step would raise all rows for the sake of one.

    Raises:
        ValueError: there is nothing to fit, or something measured is not positive.
    """
    if not rows or min(measured) <= 0:
        raise ValueError("a fit needs measurements, each above zero")
    relative = [[value / at for value in row] for row, at in zip(rows, measured, strict=True)]
    scales = [max(abs(row[i]) for row in relative) or 1.0 for i in range(len(rows[0]))]
    scaled = [[value / s for value, s in zip(row, scales, strict=True)] for row in relative]
    found = _no_lower(scaled)
    lowest = min(_dot(row, found) for row in scaled)
    raised = [x / lowest if 0 < lowest < 1 else x for x in found]
    return tuple(x / s for x, s in zip(raised, scales, strict=True))


def _no_lower(rows: Sequence[Row]) -> list[float]:
    """x >= 0 with rows @ x near 1, and rather above than below."""
    weights = [1.0] * len(rows)
    found: list[float] = []
    for _ in range(_ROUNDS):
        found = _non_negative(
            [[w * v for v in row] for w, row in zip(weights, rows, strict=True)], weights
        )
        last, weights = weights, [_WEIGHT_OF_UNDER if _dot(row, found) < 1 else 1.0 for row in rows]
        if weights == last:
            break
    return found


def _non_negative(rows: Sequence[Row], wanted: Sequence[float]) -> list[float]:
    """x >= 0 with the least squared error of rows @ x."""
    width = len(rows[0])
    gram = [[_dot(_column(rows, i), _column(rows, j)) for j in range(width)] for i in range(width)]
    target = [_dot(_column(rows, i), wanted) for i in range(width)]
    x = [0.0] * width
    active: list[int] = []
    for _ in range(10 * width):
        slopes = [target[i] - _dot(gram[i], x) for i in range(width)]
        steepest = max(
            (i for i in range(width) if i not in active), key=slopes.__getitem__, default=-1
        )
        if steepest < 0 or slopes[steepest] <= 1e-9:
            break
        active.append(steepest)
        x = _settle(gram, target, active, x)
    return x


def _settle(gram: Sequence[Row], target: Row, active: list[int], x: list[float]) -> list[float]:
    """Solve on the active columns; those that would become negative leave `active`."""
    while True:
        solved = _solve([[gram[i][j] for j in active] for i in active], [target[i] for i in active])
        if all(value > _TINY for value in solved):
            break
        pairs = list(zip(active, solved, strict=True))
        step = min((x[i] / (x[i] - v) for i, v in pairs if v <= _TINY and x[i] > v), default=0.0)
        x = _moved(x, pairs, step)
        active[:] = [i for i in active if x[i] > _TINY]
        if not active:
            return x
    full = [0.0] * len(x)
    for i, value in zip(active, solved, strict=True):
        full[i] = value
    return full


def _moved(x: Sequence[float], pairs: Sequence[tuple[int, float]], step: float) -> list[float]:
    moved = list(x)
    for i, value in pairs:
        moved[i] = max(0.0, x[i] + step * (value - x[i]))
    return moved


def _solve(matrix: Sequence[Row], target: Row) -> list[float]:
    """Gauss with pivots; a whiff of ridge, for columns that are multiples of each other."""
    size = len(target)
    rows = [[*row, target[i]] for i, row in enumerate(matrix)]
    for i in range(size):
        rows[i][i] *= 1 + 1e-9
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, size):
            factor = rows[r][i] / (rows[i][i] or _TINY)
            rows[r] = [a - factor * b for a, b in zip(rows[r], rows[i], strict=True)]
    solved = [0.0] * size
    for i in reversed(range(size)):
        rest = _dot(rows[i][i + 1 : size], solved[i + 1 :])
        solved[i] = (rows[i][size] - rest) / (rows[i][i] or _TINY)
    return solved


def _column(rows: Sequence[Row], i: int) -> list[float]:
    return [row[i] for row in rows]


def _dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
