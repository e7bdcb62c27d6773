"""Plans the memory of an encoder's passes by probes."""

import logging
from collections.abc import Callable, Iterable

import mlx.core as mx

from omlx_server.compute.planning.fit import fit
from omlx_server.core.memory.encoder import (
    STRUCTURAL,
    EncoderPlan,
    EncoderShape,
    Pass,
    chunk_leftover_bytes,
    terms,
)
from omlx_server.core.work import Work
from omlx_server.errors import one_line

_log = logging.getLogger(__name__)

# The number of live buffers differs from run to run; a tenth more in one probe can change a fitted
# factor several times.
_RUNS = 3


def probing(
    shape: EncoderShape,
    probes: Iterable[tuple[Pass, Callable[[], int]]],
    of_runs: Callable[[list[int]], int],
    what: str,
) -> Work[EncoderPlan]:
    """Return a plan by the bytes that probes took, one run per slice, or an upper bound if the fit
    fails."""
    taken = list[tuple[Pass, int]]()
    for one, probe in probes:
        runs = list[int]()
        for _ in range(_RUNS):
            runs.append(probe())
            yield
        taken.append((one, of_runs(runs)))
    mx.clear_cache()
    try:
        return fitted(shape, taken)
    except ValueError as error:
        _log.warning("the memory of a %s is bounded, not measured: %s", what, one_line(error))
        return EncoderPlan(shape, STRUCTURAL)


def fitted(shape: EncoderShape, probes: Iterable[tuple[Pass, int]]) -> EncoderPlan:
    """Return the plan that fits the bytes of passes. Raises ValueError if none took any."""
    inner = [(terms(shape, one), took - chunk_leftover_bytes(shape, one)) for one, took in probes]
    rows = [(row, took) for row, took in inner if took > 0]
    activations, scores = fit([row for row, _ in rows], [took for _, took in rows])
    return EncoderPlan(shape, (activations, scores))
