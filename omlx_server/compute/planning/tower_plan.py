"""Measures the memory of a vision tower's pass. Mlx thread, at load."""

from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_server.compute.hardware import device_policy
from omlx_server.compute.model import notes
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.encoder_fit import probing_encoder
from omlx_server.compute.planning.plan_file import are_factors, key_of
from omlx_server.compute.planning.probe import measure_peak
from omlx_server.compute.vision.families import Tower
from omlx_server.compute.vision.towers.grids import Grid
from omlx_server.compute.vision.vision import pass_over
from omlx_server.core.memory.encoder import STRUCTURAL, EncoderPlan
from omlx_server.core.work import Work, finish

# The scores of these, where attention is not fused, take some hundred MB.
_MOST_PATCHES = 2048


def planning_tower(
    loaded: LoadedModel, file: Path | None = None, allowed: notes.Allowed = notes.always
) -> Work[None]:
    """Plan a vision's memory from `file`, or by one probe per slice, written if `allowed()`."""
    vision = loaded.vision
    if vision is None:
        return
    plans = notes.read(file) if file else {}
    key = f"{key_of(loaded)}; tower"
    factors = _parse_factors(plans.get(key))
    if factors is None:
        grids = _probed_grids(vision.tower)
        probes = [(pass_over(grid), partial(_bytes_of_pass, vision.tower, grid)) for grid in grids]
        factors = (yield from probing_encoder(vision.tower.shape, probes, max, "tower")).factors
        if file and factors != STRUCTURAL and allowed():
            notes.write(file, {**plans, key: list(factors)})
    vision.plan = EncoderPlan(vision.tower.shape, factors)


def _probed_grids(tower: Tower) -> list[Grid]:
    most = min(4 * device_policy.current().chunk, _MOST_PATCHES)
    return list(dict.fromkeys(map(tower.grid_of, (most // 8, most // 2, most))))


def _bytes_of_pass(tower: Tower, grid: Grid) -> int:
    pixels = np.zeros(tower.pixel_shape(grid), dtype=np.float32)
    peak = measure_peak(lambda: finish(tower.computing(mx.array(pixels), grid)))
    return peak.peak - peak.before


def _parse_factors(stored: Any) -> tuple[float, float] | None:
    return (float(stored[0]), float(stored[1])) if are_factors(stored, 2) else None
