"""Measures the memory of a vision tower's pass. Mlx thread, at load."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model import notes
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.fit import fit
from omlx_server.compute.planning.plan_file import are_factors, key_of
from omlx_server.compute.planning.probe import measured
from omlx_server.compute.vision.families import Tower
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.vision import pass_over
from omlx_server.core.memory.encoder import STRUCTURAL, EncoderPlan, EncoderShape, terms
from omlx_server.core.work import Work, finish
from omlx_server.errors import one_line

_log = logging.getLogger(__name__)

# The number of live buffers differs a little from run to run.
_RUNS = 3
# The scores of these, where attention is not fused, take some hundred MB.
_MOST_PATCHES = 2048


def planning_tower(
    loaded: LoadedModel, file: Path | None = None, allowed: notes.Allowed = notes.always
) -> Work[None]:
    """Give a model's vision, if any, a memory plan from `file`, or from one probe per slice,
    written if `allowed()`."""
    vision = loaded.vision
    if vision is None:
        return
    plans = notes.read(file) if file else {}
    key = f"{key_of(loaded)}; tower"
    factors = _parsed(plans.get(key))
    if factors is None:
        factors = yield from _probing(vision.tower)
        if file and factors != STRUCTURAL and allowed():
            notes.write(file, {**plans, key: list(factors)})
    vision.plan = EncoderPlan(vision.tower.shape, factors)


def _probing(tower: Tower) -> Work[tuple[float, float]]:
    probes = list[tuple[Grid, int]]()
    for grid in _grids(tower):
        runs = list[int]()
        for _ in range(_RUNS):
            runs.append(_took(tower, grid))
            yield
        probes.append((grid, max(runs)))
    mx.clear_cache()
    try:
        return fitted(tower.shape, probes)
    except ValueError as error:
        _log.warning("the memory of a tower is bounded, not measured: %s", one_line(error))
        return STRUCTURAL


def fitted(shape: EncoderShape, probes: Iterable[tuple[Grid, int]]) -> tuple[float, float]:
    """Return the factors that fit passes over these grids. Raises ValueError if none took bytes."""
    rows = [(terms(shape, pass_over(grid)), took) for grid, took in probes if took > 0]
    activations, scores = fit([row for row, _ in rows], [took for _, took in rows])
    return activations, scores


def _grids(tower: Tower) -> list[Grid]:
    most = min(4 * device_policy.current().chunk, _MOST_PATCHES)
    return list(dict.fromkeys(map(tower.grid_of, (most // 8, most // 2, most))))


def _took(tower: Tower, grid: Grid) -> int:
    pixels = np.zeros(tower.pixel_shape(grid), dtype=np.float32)
    peak = measured(lambda: finish(tower.computing(mx.array(pixels), grid)))
    return peak.peak - peak.before


def _parsed(stored: Any) -> tuple[float, float] | None:
    return (float(stored[0]), float(stored[1])) if are_factors(stored, 2) else None
