"""Keeps the coefficients of probed models in one JSON file, for the same weights, device,
libraries and format of caches. An unreadable file only costs new probes. Mlx thread, at load."""

import logging
import math
from pathlib import Path
from typing import Any

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.hardware import device
from omlx_server.compute.model import notes
from omlx_server.compute.model.fingerprint import libraries
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.calibrate import calibrating
from omlx_server.compute.planning.model_shape import scheme_of, shape_of, structural_shape
from omlx_server.core.memory.estimate import STRUCTURAL, Coefficients, Planner, PrefillFactors
from omlx_server.core.work import Work, finish

_log = logging.getLogger(__name__)

# To be changed whenever the columns of the coefficients change.
_FORMAT = "5"
_NAMES = ["alone.wide", "alone.deep", "together.wide", "together.deep", "layers", "head", "copies"]


def planner_for(loaded: LoadedModel, file: Path | None = None) -> Planner:
    """Make a loaded model's memory planner without a pause."""
    return finish(planning(loaded, file))


def planning(
    loaded: LoadedModel, file: Path | None = None, allowed: notes.Allowed = notes.always
) -> Work[Planner]:
    """Make the memory planner of a loaded model from `file`, or from one probe per slice,
    written if `allowed()`. A model that cannot be probed gets an upper bound."""
    try:
        shape = shape_of(loaded)
    except CannotFill as error:
        _log.warning("the memory of a step is bounded, not measured: %s", error)
        return Planner(structural_shape(loaded.dims), STRUCTURAL)
    plans = notes.read(file) if file else {}
    key = key_of(loaded)
    coefficients = _from_json(plans.get(key))
    if coefficients is None:
        coefficients = yield from calibrating(loaded, shape)
        if file and coefficients.calibrated and allowed():
            notes.write(file, {**plans, key: _to_json(coefficients)})
    return Planner(shape, coefficients)


def key_of(loaded: LoadedModel) -> str:
    scheme = scheme_of(loaded)
    caches = scheme.name if scheme else "plain"
    parts = [_FORMAT, loaded.fingerprint, device.name(), *libraries(), caches, loaded.dims.dtype]
    if loaded.experts is not None:
        parts.append(f"{loaded.experts.slots} experts in memory")
    return "; ".join(parts)


def _to_json(coefficients: Coefficients) -> dict[str, list[float]]:
    alone, together = coefficients.alone, coefficients.together
    others = coefficients.layers, coefficients.head, coefficients.copies
    factors = (alone.wide, alone.deep, together.wide, together.deep, *others)
    return dict(zip(_NAMES, map(list, factors), strict=True))


def _from_json(stored: Any) -> Coefficients | None:
    expected = _to_json(STRUCTURAL)
    if not isinstance(stored, dict) or not all(
        are_factors(stored.get(name), len(factors)) for name, factors in expected.items()
    ):
        return None
    factors: list[Any] = [tuple(map(float, stored[name])) for name in _NAMES]
    alone, together = PrefillFactors(*factors[:2]), PrefillFactors(*factors[2:4])
    return Coefficients(alone, together, *factors[4:])


def are_factors(stored: Any, count: int) -> bool:
    return (
        isinstance(stored, list)
        and len(stored) == count
        and all(isinstance(x, int | float) and math.isfinite(x) and x >= 0 for x in stored)
    )
