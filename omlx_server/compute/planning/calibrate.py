"""Probes a model and fits the coefficients of its memory planner. Mlx thread, at load.

Contexts are short, because coefficients are slopes, but longer for quantised caches, which are read
tile by tile.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import mlx.core as mx

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.fit import fit
from omlx_server.compute.planning.probe import ForwardProbe, Peak
from omlx_server.core.memory.estimate import (
    STRUCTURAL,
    Coefficients,
    Planner,
    PrefillFactors,
    deep_columns,
    head_columns,
    times,
    wide_columns,
)
from omlx_server.core.memory.features import decode_terms, prefill_terms
from omlx_server.core.memory.kv import GROWTH, cache_bytes
from omlx_server.core.memory.shape import Decode, ModelShape, PrefillShape
from omlx_server.core.work import Work
from omlx_server.errors import one_line

P = TypeVar("P", PrefillShape, Decode)

_log = logging.getLogger(__name__)

_WIDE_ALONE = (PrefillShape(1, 16, 0), PrefillShape(1, 160, 0))
# The first probe just fills its buffers, the next two need larger ones, the last has few scores.
_DEEP_ALONE = (
    PrefillShape(1, 64, 1984),
    PrefillShape(1, 16, 1024),
    PrefillShape(1, 64, 1024),
    PrefillShape(1, 128, 128),
)
_WIDE_TOGETHER = PrefillShape(4, 24, 0)
_DEEP_TOGETHER = (PrefillShape(2, 64, 256), PrefillShape(4, 16, 700))
_LAYERS = (Decode(1, 64), Decode(4, 64), Decode(4, 1000))
_HEAD = (Decode(1, 8), Decode(4, 8), Decode(4, 1000))
_HEAD_OF_PACKED = (*_HEAD, Decode(1, 2000))
_GROWS = Decode(4, 1024, grows=True)
# A longer context, or else the tiles that attention unpacks would hide the copy of a layer.
_GROWS_OF_PACKED = Decode(4, 4096, grows=True)
# The factor of scores where attention is not fused and sees every key: the scores and their powers.
_SCORES = 2.0
_PACKED_TIMES = 2
# The number of live tiles differs from run to run.
_PACKED_RUNS = 2
# The most bytes of a probe's caches, or 256 tokens a row if that is more. Prefills merge the caches
# of several prompts, which takes time.
_CACHE_BYTES = 256 << 20
_MERGED_BYTES = 128 << 20


def calibrating(loaded: LoadedModel, shape: ModelShape) -> Work[Coefficients]:
    """Return a model's coefficients, one probe per slice, or `STRUCTURAL` if that fails."""
    try:
        return (yield from _Calibration(loaded, shape).run())
    except (CannotFill, RuntimeError, TypeError, ValueError) as error:
        _log.warning("the memory of a step is bounded, not measured: %s", one_line(error))
        return STRUCTURAL
    finally:
        mx.clear_cache()


class _Calibration:
    def __init__(self, loaded: LoadedModel, shape: ModelShape) -> None:
        self._shape = shape
        self._bench = ForwardProbe(loaded)
        packed = shape.tiles is not None
        self._times, self._runs = (_PACKED_TIMES, _PACKED_RUNS) if packed else (1, 1)
        self._bench.prefill(PrefillShape(1, 8, 0))  # what a model makes only once

    def run(self) -> Work[Coefficients]:
        alone = yield from self._alone()
        together = (yield from self._together(alone)) if self._bench.batchable else alone
        layers = yield from self._decodes(_LAYERS, headless=True)
        head = yield from self._decodes(_HEAD_OF_PACKED if self._shape.tiles else _HEAD)
        coefficients = Coefficients(alone, together, layers, head, STRUCTURAL.copies)
        copies = yield from self._copies(Planner(self._shape, coefficients))
        return replace(coefficients, copies=copies)

    def _alone(self) -> Work[PrefillFactors]:
        longer = [replace(probe, context=self._context(probe)) for probe in _DEEP_ALONE]
        columns = [deep_columns(prefill_terms(self._shape, probe)) for probe in longer]
        deep = fit(columns, (yield from self._took(longer, self._bench.prefill)))
        terms = [wide_columns(prefill_terms(self._shape, probe)) for probe in _WIDE_ALONE]
        return PrefillFactors(
            _wide(terms, (yield from self._took(_WIDE_ALONE, self._bench.prefill)), deep[1]), deep
        )

    def _together(self, alone: PrefillFactors) -> Work[PrefillFactors]:
        probes = [replace(probe, context=self._context(probe)) for probe in _DEEP_TOGETHER]
        terms = [prefill_terms(self._shape, probe) for probe in probes]
        inner = [times(term.inner, alone.deep[:3]) for term in terms]
        took = yield from self._took(probes, self._bench.prefill)
        columns = list(zip(inner, (term.copied for term in terms), strict=True))
        more = max(1.0, fit(columns, took)[0])
        copies = [max(1.0, whole - more * part) for whole, part in zip(took, inner, strict=True)]
        [copied] = fit([(term.copied,) for term in terms], copies)
        shallow = wide_columns(prefill_terms(self._shape, _WIDE_TOGETHER))
        [wide] = yield from self._took([_WIDE_TOGETHER], self._bench.prefill)
        wider = max(1.0, wide / times(shallow, alone.wide))
        return PrefillFactors(
            tuple(wider * factor for factor in alone.wide),
            (*(more * factor for factor in alone.deep[:3]), 0.0, max(1.0, copied)),
        )

    def _took(self, probes: Sequence[P], measure: Callable[[P], Peak]) -> Work[list[float]]:
        took = list[float]()
        for probe in probes:
            took.append(max(1, *(measure(probe).transient for _ in range(self._runs))))
            yield
        return took

    def _decodes(
        self, probes: Sequence[Decode], *, headless: bool = False
    ) -> Work[tuple[float, ...]]:
        able = self._able(probes)
        terms = [decode_terms(self._shape, probe) for probe in able]
        columns = [t.inner if headless else head_columns(t) for t in terms]
        measure = self._bench.layers if headless else self._bench.decode
        return fit(columns, (yield from self._took(able, measure)))

    def _copies(self, steady: Planner) -> Work[tuple[float, float]]:
        """Return factors of the layer's bytes, at least 1, and of a decode without a copy, at
        most 1."""
        packed = self._shape.tiles is not None
        [probe] = self._able([_GROWS_OF_PACKED if packed else _GROWS])
        terms = decode_terms(self._shape, probe)
        [took] = yield from self._took([probe], self._bench.decode)
        without = steady.steady_bytes(terms)
        share = min(max(0.0, (took - terms.grown) / without), 1.0) if packed else 1.0
        return max(1.0, (took - share * without) / terms.grown), share

    def _able(self, probes: Sequence[Decode]) -> list[Decode]:
        if not self._bench.batchable:
            probes = [replace(probe, rows=1) for probe in probes]
        return [replace(probe, context=self._context(probe)) for probe in probes]

    def _context(self, probe: PrefillShape | Decode) -> int:
        wanted = probe.context * self._times
        token = cache_bytes(self._shape.layers, probe.rows, GROWTH) // GROWTH
        limit = _CACHE_BYTES if isinstance(probe, Decode) else _MERGED_BYTES
        room = limit // max(1, token) // GROWTH * GROWTH
        return min(wanted, max(room, GROWTH))


def _wide(
    columns: Sequence[tuple[int, ...]], took: Sequence[float], scores: float
) -> tuple[float, float]:
    """Return the factors of activations and of scores in short chunks.

    That of long contexts, `scores`, is below 1 where only the last layer has full attention; short
    chunks then show more, at most `_SCORES`.
    """
    _, short = fit(columns, took)
    if short > 1 > scores:
        scores = min(short, _SCORES)
    without = [
        max(1.0, whole - scores * of_scores)
        for whole, (_, of_scores) in zip(took, columns, strict=True)
    ]
    [activations] = fit([(of_activations,) for of_activations, _ in columns], without)
    return activations, scores
