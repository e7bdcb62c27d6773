"""Measures an encoder's memory on two layers, since all are alike. Mlx thread, at load."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median_low

import mlx.core as mx

from omlx_server.compute.embed.batch import Backbone, Batch
from omlx_server.compute.embed.body import Head, results
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.planning.fit import fit
from omlx_server.compute.planning.probe import measured
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import (
    STRUCTURAL,
    EncoderPlan,
    EncoderShape,
    Pass,
    chunk_leftover_bytes,
    terms,
)
from omlx_server.core.work import Work, finish
from omlx_server.errors import one_line

_log = logging.getLogger(__name__)

_LAYERS = 2
_SHORT = 16
# The number of live buffers differs from run to run; a tenth more in one probe can change a fitted
# factor several times.
_RUNS = 3


def planning(backbone: Backbone, head: Head, pad_id: int, max_tokens: int) -> Work[EncoderPlan]:
    """Return a memory plan, from one probe per slice, or an upper bound if the fit fails."""
    short = backbone.shallow(_LAYERS)
    longest = min(device_policy.current().chunk // 2, max_tokens)
    probes = list[tuple[Pass, int]]()
    shape = backbone.shape(_width(short, pad_id))
    for one in _passes(longest, max_tokens, shape):
        runs = list[int]()
        for _ in range(_RUNS):
            runs.append(_took(short, head, pad_id, one))
            yield
        probes.append((one, median_low(runs)))
    mx.clear_cache()
    try:
        plan = fitted(replace(shape, layers=_LAYERS), probes)
    except ValueError as error:
        _log.warning("the memory of a pass is bounded, not measured: %s", one_line(error))
        return EncoderPlan(shape, STRUCTURAL)
    return replace(plan, shape=shape)


def fitted(shape: EncoderShape, probes: Iterable[tuple[Pass, int]]) -> EncoderPlan:
    """Return the plan that fits the bytes of passes. Raises ValueError if none took any."""
    inner = [(terms(shape, one), took - chunk_leftover_bytes(shape, one)) for one, took in probes]
    rows = [(row, took) for row, took in inner if took > 0]
    activations, scores = fit([row for row, _ in rows], [took for _, took in rows])
    return EncoderPlan(shape, (activations, scores))


def _passes(longest: int, max_tokens: int, shape: EncoderShape) -> Iterator[Pass]:
    deep = min(2 * longest, max_tokens)
    yield Pass(1, deep, deep)
    for rows in (1, 2, max(1, longest // _SHORT)):
        yield Pass(rows, max(1, longest // rows), longest)
    if shape.causal and longest >= _SHORT:
        yield Pass(1, longest, longest // 4)
        yield Pass(2, longest, longest // 2)


def _took(backbone: Backbone, head: Head, pad_id: int, one: Pass) -> int:
    lengths = [one.tokens] * (one.rows - 1) + [max(1, one.tokens - (one.rows > 1))]
    inputs = [TokenizedText((pad_id,) * length) for length in lengths]

    def run() -> mx.array:
        return finish(results(backbone, Batch.of(inputs, pad_id), head, one.slice_tokens))

    peak = measured(run)
    return peak.peak - peak.before


def _width(backbone: Backbone, pad_id: int) -> int:
    hidden = finish(backbone.run(Batch.of([TokenizedText((pad_id,))], pad_id), 1))
    return hidden.dtype.size
