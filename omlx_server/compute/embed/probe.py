"""How much memory passes of a model that reads take: short ones, at load. Mlx thread.

All layers are alike and run one after the other, so two of them show what any number takes.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx

from omlx_server.compute.embed.batch import Backbone, Batch
from omlx_server.compute.embed.body import Head, results
from omlx_server.compute.hardware import device
from omlx_server.compute.planning.probe import measured
from omlx_server.core.encoded import Encoded
from omlx_server.core.memory.reader import STRUCTURAL, Pass, ReaderPlan, ReaderShape, fitted
from omlx_server.core.work import Work, finish
from omlx_server.errors import first_line

_log = logging.getLogger(__name__)

_LAYERS = 2
_SHORT = 16
# How many buffers are alive at once is partly a matter of luck.
_RUNS = 2


def planning(backbone: Backbone, head: Head, pad_id: int, max_tokens: int) -> Work[ReaderPlan]:
    """What its passes take, by probes, a slice each. `head` makes results of hidden states."""
    short = backbone.shallow(_LAYERS)
    longest = min(device.prefill_chunk_tokens() // 2, max_tokens)
    probes = list[tuple[Pass, int]]()
    shape = backbone.shape(_width(short, pad_id))
    for one in _passes(longest, shape):
        for _ in range(_RUNS):
            probes.append((one, _took(short, head, pad_id, one)))
            yield
    mx.clear_cache()
    try:
        found = fitted(replace(shape, layers=_LAYERS), probes)
    except ValueError as error:
        _log.warning("the memory of a reading is bounded, not measured: %s", first_line(error))
        return ReaderPlan(shape, STRUCTURAL)
    return replace(found, shape=shape)


def _passes(longest: int, shape: ReaderShape) -> Iterator[Pass]:
    """Few scores, many, and in between; texts in chunks where the model reads such."""
    for rows in (1, 2, max(1, longest // _SHORT)):
        yield Pass(rows, max(1, longest // rows), longest)
    if shape.causal and longest >= _SHORT:
        yield Pass(1, longest, longest // 4)
        yield Pass(2, longest, longest // 2)


def _took(backbone: Backbone, head: Head, pad_id: int, one: Pass) -> int:
    """The last row is a token shorter, so that others are padded."""
    lengths = [one.tokens] * (one.rows - 1) + [max(1, one.tokens - (one.rows > 1))]
    inputs = [Encoded((pad_id,) * length) for length in lengths]

    def run() -> mx.array:
        return finish(results(backbone, Batch.of(inputs, pad_id), head, one.slice_tokens))

    peak = measured(run)
    return peak.peak - peak.before


def _width(backbone: Backbone, pad_id: int) -> int:
    hidden = finish(backbone.run(Batch.of([Encoded((pad_id,))], pad_id), 1))
    return hidden.dtype.size
