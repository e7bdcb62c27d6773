"""Measures an encoder's memory with two of its layers, since all are alike. Mlx thread, at load."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median_low

import mlx.core as mx

from omlx_server.compute.embed.backbone_encoder import Head, compute_batch
from omlx_server.compute.embed.batch import Backbone, Batch
from omlx_server.compute.hardware import device_policy
from omlx_server.compute.planning.encoder_fit import probing_encoder
from omlx_server.compute.planning.probe import measure_peak
from omlx_server.core.encoded import TokenizedText
from omlx_server.core.memory.encoder import EncoderPlan, EncoderShape, Pass
from omlx_server.core.work import Work, finish

_LAYERS = 2
_SHORT_TOKENS = 16


def planning(backbone: Backbone, head: Head, pad_id: int, max_tokens: int) -> Work[EncoderPlan]:
    """Return a memory plan, from one probe per slice, or an upper bound if the fit fails."""
    shallow = backbone.shallow(_LAYERS)
    shape = backbone.shape(_bytes_of_a_number(shallow, pad_id))
    passes = _passes_to_measure(max_tokens, shape)
    probes = [(one, partial(_measure_bytes, shallow, head, pad_id, one)) for one in passes]
    plan = yield from probing_encoder(replace(shape, layers=_LAYERS), probes, median_low, "pass")
    return replace(plan, shape=shape)


def _passes_to_measure(max_tokens: int, shape: EncoderShape) -> Iterator[Pass]:
    tokens = min(device_policy.current().chunk // 2, max_tokens)
    most_tokens = min(2 * tokens, max_tokens)
    yield Pass(1, most_tokens, most_tokens)
    for rows in (1, 2, max(1, tokens // _SHORT_TOKENS)):
        yield Pass(rows, max(1, tokens // rows), tokens)
    if shape.causal and tokens >= _SHORT_TOKENS:
        yield Pass(1, tokens, tokens // 4)
        yield Pass(2, tokens, tokens // 2)


def _measure_bytes(backbone: Backbone, head: Head, pad_id: int, one: Pass) -> int:
    # The last of several rows is a token shorter, so that the batch is padded.
    last = one.tokens if one.rows == 1 else max(1, one.tokens - 1)
    lengths = [one.tokens] * (one.rows - 1) + [last]
    inputs = [TokenizedText((pad_id,) * length) for length in lengths]

    def run() -> mx.array:
        return finish(compute_batch(backbone, Batch.of(inputs, pad_id), head, one.slice_tokens))

    memory = measure_peak(run)
    return memory.peak - memory.before


def _bytes_of_a_number(backbone: Backbone, pad_id: int) -> int:
    """Return the width of a hidden state's numbers."""
    hidden = finish(backbone.run(Batch.of([TokenizedText((pad_id,))], pad_id), 1))
    return hidden.dtype.size
