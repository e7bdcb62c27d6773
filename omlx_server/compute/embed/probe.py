"""Measures an encoder's memory on two layers, since all are alike. Mlx thread, at load."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median_low

import mlx.core as mx

from omlx_server.compute.embed.batch import Backbone, Batch
from omlx_server.compute.embed.body import Head, results
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.planning.encoder_fit import probing_encoder
from omlx_server.compute.planning.probe import measure_peak
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import EncoderPlan, EncoderShape, Pass
from omlx_server.core.work import Work, finish

_LAYERS = 2
_SHORT = 16


def planning(backbone: Backbone, head: Head, pad_id: int, max_tokens: int) -> Work[EncoderPlan]:
    """Return a memory plan, from one probe per slice, or an upper bound if the fit fails."""
    short = backbone.shallow(_LAYERS)
    longest = min(device_policy.current().chunk // 2, max_tokens)
    shape = backbone.shape(_width(short, pad_id))
    passes = _passes(longest, max_tokens, shape)
    probes = [(one, partial(_took, short, head, pad_id, one)) for one in passes]
    plan = yield from probing_encoder(replace(shape, layers=_LAYERS), probes, median_low, "pass")
    return replace(plan, shape=shape)


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

    peak = measure_peak(run)
    return peak.peak - peak.before


def _width(backbone: Backbone, pad_id: int) -> int:
    hidden = finish(backbone.run(Batch.of([TokenizedText((pad_id,))], pad_id), 1))
    return hidden.dtype.size
