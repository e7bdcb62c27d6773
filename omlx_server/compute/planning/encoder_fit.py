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


def probing_encoder(
    shape: EncoderShape,
    probes: Iterable[tuple[Pass, Callable[[], int]]],
    reduce_runs: Callable[[list[int]], int],
    what: str,
) -> Work[EncoderPlan]:
    """Return a plan by the bytes of probes, one run per slice; an upper bound if the fit fails."""
    measured = list[tuple[Pass, int]]()
    for probed_pass, probe in probes:
        run_bytes = list[int]()
        for _ in range(_RUNS):
            run_bytes.append(probe())
            yield
        measured.append((probed_pass, reduce_runs(run_bytes)))
    mx.clear_cache()
    try:
        return fit_encoder_plan(shape, measured)
    except ValueError as error:
        _log.warning("the memory of a %s is bounded, not measured: %s", what, one_line(error))
        return EncoderPlan(shape, STRUCTURAL)


def fit_encoder_plan(shape: EncoderShape, probes: Iterable[tuple[Pass, int]]) -> EncoderPlan:
    """Return the plan that fits the bytes of passes. Raises ValueError if none took any."""
    columns, pass_bytes = [], list[int]()
    for probed_pass, took in probes:
        within = took - chunk_leftover_bytes(shape, probed_pass)
        if within > 0:
            columns.append(terms(shape, probed_pass))
            pass_bytes.append(within)
    activations, scores = fit(columns, pass_bytes)
    return EncoderPlan(shape, (activations, scores))
