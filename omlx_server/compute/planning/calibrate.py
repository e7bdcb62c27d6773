"""A model is probed and its coefficients fitted. Mlx thread, at load.

Contexts are short: what is fitted are slopes. Quantised caches are longer at the same number of
bytes, and are read tile by tile, which a short context would not show.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import mlx.core as mx

from omlx_server.compute.codecs.base import CannotFill
from omlx_server.compute.model.loader import LoadedModel
from omlx_server.compute.planning.fit import fit
from omlx_server.compute.planning.probe import Bench, Peak
from omlx_server.core.memory.estimate import (
    STRUCTURAL,
    Coefficients,
    Planner,
    Prefills,
    deep_columns,
    head_columns,
    times,
    wide_columns,
)
from omlx_server.core.memory.features import decode_terms, prefill_terms
from omlx_server.core.memory.kv import GROWTH, cache_bytes
from omlx_server.core.memory.shape import Decode, ModelShape, Prefill
from omlx_server.core.work import Work
from omlx_server.errors import first_line

P = TypeVar("P", Prefill, Decode)

_log = logging.getLogger(__name__)

_WIDE_ALONE = (Prefill(1, 16, 0), Prefill(1, 160, 0))
# The first fills its buffers to the last place, two outgrow theirs, one has few scores.
_DEEP_ALONE = (
    Prefill(1, 64, 1984),
    Prefill(1, 16, 1024),
    Prefill(1, 64, 1024),
    Prefill(1, 128, 128),
)
_WIDE_TOGETHER = Prefill(4, 24, 0)
_DEEP_TOGETHER = (Prefill(2, 64, 256), Prefill(4, 16, 700))
_LAYERS = (Decode(1, 64), Decode(4, 64), Decode(4, 1000))
_HEAD = (Decode(1, 8), Decode(4, 8), Decode(4, 1000))
_HEAD_OF_PACKED = (*_HEAD, Decode(1, 2000))
_GROWS = Decode(4, 1024, grows=True)
# The tiles that attention unpacks would hide a shorter one.
_GROWS_OF_PACKED = Decode(4, 4096, grows=True)
# Scores and their powers: how many there are where attention is not fused and all is seen.
_SCORES = 2.0
_PACKED_TIMES = 2
# How many tiles are alive at a time is a matter of luck.
_PACKED_RUNS = 2
# No probe fills more than this much of caches, or 256 tokens a row. Several prompts at once are
# copied as a whole, which takes its time.
_CACHE_BYTES = 256 << 20
_MERGED_BYTES = 128 << 20


def calibrating(loaded: LoadedModel, shape: ModelShape) -> Work[Coefficients]:
    """Probe a model, a slice for each probe; where that can't be done, an upper bound, and the log
    says so."""
    try:
        return (yield from _Calibration(loaded, shape).run())
    except (CannotFill, RuntimeError, TypeError, ValueError) as error:
        _log.warning("the memory of a step is bounded, not measured: %s", first_line(error))
        return STRUCTURAL
    finally:
        mx.clear_cache()


class _Calibration:
    """One run of all probes."""

    def __init__(self, loaded: LoadedModel, shape: ModelShape) -> None:
        self._shape = shape
        self._bench = Bench(loaded)
        packed = shape.tiles is not None
        self._times, self._runs = (_PACKED_TIMES, _PACKED_RUNS) if packed else (1, 1)
        self._bench.prefill(Prefill(1, 8, 0))  # what is made once is no step's

    def run(self) -> Work[Coefficients]:
        alone = yield from self._alone()
        together = (yield from self._together(alone)) if self._bench.batchable else alone
        layers = yield from self._decodes(_LAYERS, headless=True)
        head = yield from self._decodes(_HEAD_OF_PACKED if self._shape.tiles else _HEAD)
        found = Coefficients(alone, together, layers, head, STRUCTURAL.copies)
        copies = yield from self._copies(Planner(self._shape, found))
        return replace(found, copies=copies)

    def _alone(self) -> Work[Prefills]:
        longer = [replace(probe, context=self._context(probe)) for probe in _DEEP_ALONE]
        columns = [deep_columns(prefill_terms(self._shape, probe)) for probe in longer]
        deep = fit(columns, (yield from self._took(longer, self._bench.prefill)))
        terms = [wide_columns(prefill_terms(self._shape, probe)) for probe in _WIDE_ALONE]
        return Prefills(
            _wide(terms, (yield from self._took(_WIDE_ALONE, self._bench.prefill)), deep[1]), deep
        )

    def _together(self, alone: Prefills) -> Work[Prefills]:
        """Rows in a batch take what they take one by one, or more, and their copies, which are all
        alive at some moment."""
        probes = [replace(probe, context=self._context(probe)) for probe in _DEEP_TOGETHER]
        terms = [prefill_terms(self._shape, probe) for probe in probes]
        inner = [times(own.inner, alone.deep[:3]) for own in terms]
        took = yield from self._took(probes, self._bench.prefill)
        columns = list(zip(inner, (own.copied for own in terms), strict=True))
        more = max(1.0, fit(columns, took)[0])
        rest = [max(1.0, whole - more * own) for whole, own in zip(took, inner, strict=True)]
        [copied] = fit([(own.copied,) for own in terms], rest)
        shallow = wide_columns(prefill_terms(self._shape, _WIDE_TOGETHER))
        [wide] = yield from self._took([_WIDE_TOGETHER], self._bench.prefill)
        wider = max(1.0, wide / times(shallow, alone.wide))
        return Prefills(
            tuple(wider * factor for factor in alone.wide),
            (*(more * factor for factor in alone.deep[:3]), 0.0, max(1.0, copied)),
        )

    def _took(self, probes: Sequence[P], measure: Callable[[P], Peak]) -> Work[list[float]]:
        """The most that each of them took in so many runs."""
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
        """Beside the layer that it copies a decode takes what it takes without: all of that where
        that is little, a share where tiles are unpacked. What is above are more copies. A short
        copy may be over before the layer before it has let go of its own, so one is the least."""
        packed = self._shape.tiles is not None
        [probe] = self._able([_GROWS_OF_PACKED if packed else _GROWS])
        terms = decode_terms(self._shape, probe)
        [took] = yield from self._took([probe], self._bench.decode)
        rest = steady.steady(terms)
        share = min(max(0.0, (took - terms.grown) / rest), 1.0) if packed else 1.0
        return max(1.0, (took - share * rest) / terms.grown), share

    def _able(self, probes: Sequence[Decode]) -> list[Decode]:
        """Those that this model can run, with contexts that it has room for."""
        if not self._bench.batchable:
            probes = [replace(probe, rows=1) for probe in probes]
        return [replace(probe, context=self._context(probe)) for probe in probes]

    def _context(self, probe: Prefill | Decode) -> int:
        wanted = probe.context * self._times
        token = cache_bytes(self._shape.layers, probe.rows, GROWTH) // GROWTH
        limit = _CACHE_BYTES if isinstance(probe, Decode) else _MERGED_BYTES
        room = limit // max(1, token) // GROWTH * GROWTH
        return min(wanted, max(room, GROWTH))


def _wide(
    columns: Sequence[tuple[int, ...]], took: Sequence[float], scores: float
) -> tuple[float, float]:
    """Short chunks tell little of scores, so theirs is the factor of long ones, `scores`; unless
    only rings are long enough to show any: a prefill never needs those of the last layer."""
    _, own = fit(columns, took)
    if own > 1 > scores:
        scores = min(own, _SCORES)
    rest = [
        max(1.0, whole - scores * of_scores)
        for whole, (_, of_scores) in zip(took, columns, strict=True)
    ]
    [activations] = fit([(of_activations,) for of_activations, _ in columns], rest)
    return activations, scores
