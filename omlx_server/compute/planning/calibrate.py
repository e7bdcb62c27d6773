"""Probes a model and fits the coefficients of its memory planner. Mlx thread, at load. Deep probes
have a context, wide ones none. Contexts are short, because coefficients are slopes, but longer for
quantised caches, which are read tile by tile."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
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
    weighted_sum,
    wide_columns,
)
from omlx_server.core.memory.features import decode_terms, prefill_terms
from omlx_server.core.memory.kv import GROWTH, Decode, ModelShape, PrefillShape, cache_bytes
from omlx_server.core.memory.probe_time import Probe, ProbeTime
from omlx_server.core.work import Work
from omlx_server.errors import one_line

A = TypeVar("A")
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
_ALONE, _TOGETHER = (*_WIDE_ALONE, *_DEEP_ALONE), (_WIDE_TOGETHER, *_DEEP_TOGETHER)
_LAYERS = (Decode(1, 64), Decode(4, 64), Decode(4, 1000))
_HEAD = (Decode(1, 8), Decode(4, 8), Decode(4, 1000))
_HEAD_OF_PACKED = (*_HEAD, Decode(1, 2000))
_GROWS = Decode(4, 1024, grows=True)
# A longer context, or else the tiles that attention unpacks would hide the copy of a layer.
_GROWS_OF_PACKED = Decode(4, 4096, grows=True)
# The factor of scores where attention is not fused and sees every key: the scores and their powers.
_MOST_SCORES_FACTOR = 2.0
_PACKED_CONTEXT_FACTOR = 2
# The number of live tiles differs from run to run.
_PACKED_RUNS = 2
# The most bytes of a probe's caches, or 256 tokens a row if that is more. Prefills merge the caches
# of several prompts, which takes time.
_MOST_CACHE_BYTES = 256 << 20
_MOST_MERGED_BYTES = 128 << 20
# All probes take so long at most; what there is no time for is bounded.
_MOST_SECONDS = 30.0
_FIRST = PrefillShape(1, 8, 0)


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
        self._probe = ForwardProbe(loaded)
        packed = shape.tiles is not None
        self._context_factor = _PACKED_CONTEXT_FACTOR if packed else 1
        self._runs = _PACKED_RUNS if packed else 1
        self._probe.prefill(_FIRST)  # what a model makes only once
        begun = perf_counter()
        self._probe.prefill(_FIRST)
        self._time = ProbeTime(_MOST_SECONDS, (perf_counter() - begun) / _FIRST.tokens)
        self._bounded_parts = list[str]()

    def run(self) -> Work[Coefficients]:
        bound = STRUCTURAL
        packed, possible = self._shape.tiles is not None, self._possible
        bare, heads = possible(_LAYERS), possible(_HEAD_OF_PACKED if packed else _HEAD)
        grows = possible([_GROWS_OF_PACKED if packed else _GROWS])
        # Decodes first: they take the least time.
        bare_fit = self._fit_decodes(bare, headless=True)
        layers = yield from self._in_time("decodes", bare, bound.layers, bare_fit)
        head = yield from self._in_time("logits", heads, bound.head, self._fit_decodes(heads))
        decodes = replace(bound, layers=layers, head=head)
        copying = self._fit_copies(grows[0], Planner(self._shape, decodes))
        copies = yield from self._in_time("copies", grows, bound.copies, copying)
        alone = yield from self._in_time("prefills", _ALONE, bound.alone, self._fit_alone())
        together = alone
        if self._probe.batchable:
            merging = self._fit_together(alone)
            together = yield from self._in_time("batches", _TOGETHER, bound.together, merging)
        if parts := ", ".join(self._bounded_parts):
            _log.warning("the memory of %s is bounded, not measured: that would take long", parts)
        return Coefficients(alone, together, layers, head, copies, calibrated=not parts)

    def _in_time(self, part: str, probes: Sequence[Probe], bound: A, fitting: Work[A]) -> Work[A]:
        if self._time.allows(probes, self._runs):
            return (yield from fitting)
        self._bounded_parts.append(part)
        return bound

    def _fit_alone(self) -> Work[PrefillFactors]:
        deep_probes = [self._bounded(probe) for probe in _DEEP_ALONE]
        columns = [deep_columns(prefill_terms(self._shape, probe)) for probe in deep_probes]
        deep = fit(columns, (yield from self._transient_bytes(deep_probes, self._probe.prefill)))
        columns = [wide_columns(prefill_terms(self._shape, probe)) for probe in _WIDE_ALONE]
        wide_bytes = yield from self._transient_bytes(_WIDE_ALONE, self._probe.prefill)
        return PrefillFactors(_fit_wide(columns, wide_bytes, scores=deep[1]), deep)

    def _fit_together(self, alone: PrefillFactors) -> Work[PrefillFactors]:
        """Fit prefills of several prompts, as multiples of one, and copies."""
        probes = [self._bounded(probe) for probe in _DEEP_TOGETHER]
        terms = [prefill_terms(self._shape, probe) for probe in probes]
        as_alone = [weighted_sum(term.inner, alone.deep[:3]) for term in terms]
        took = yield from self._transient_bytes(probes, self._probe.prefill)
        columns = list(zip(as_alone, (term.copied for term in terms), strict=True))
        deep_multiple = max(1.0, fit(columns, took)[0])
        pairs = zip(took, as_alone, strict=True)
        copies = [max(1.0, all_bytes - deep_multiple * inner) for all_bytes, inner in pairs]
        [copied] = fit([(term.copied,) for term in terms], copies)
        wide_as_alone = weighted_sum(
            wide_columns(prefill_terms(self._shape, _WIDE_TOGETHER)), alone.wide
        )
        [wide_took] = yield from self._transient_bytes([_WIDE_TOGETHER], self._probe.prefill)
        wide_multiple = max(1.0, wide_took / wide_as_alone)
        return PrefillFactors(
            tuple(wide_multiple * factor for factor in alone.wide),
            (*(deep_multiple * factor for factor in alone.deep[:3]), 0.0, max(1.0, copied)),
        )

    def _transient_bytes(
        self, probes: Sequence[P], measure: Callable[[P], Peak]
    ) -> Work[list[float]]:
        """Return the most transient bytes of each probe."""
        took = list[float]()
        for probe in probes:
            begun = perf_counter()
            took.append(max(1, *(measure(probe).transient for _ in range(self._runs))))
            self._time.left -= perf_counter() - begun
            yield
        return took

    def _fit_decodes(
        self, probes: Sequence[Decode], *, headless: bool = False
    ) -> Work[tuple[float, ...]]:
        terms = [decode_terms(self._shape, probe) for probe in probes]
        columns = [term.inner if headless else head_columns(term) for term in terms]
        measure = self._probe.layers if headless else self._probe.decode
        return fit(columns, (yield from self._transient_bytes(probes, measure)))

    def _fit_copies(self, probe: Decode, steady: Planner) -> Work[tuple[float, float]]:
        """Return factors of a decode that enlarges buffers: of a layer's bytes, and of `steady`."""
        packed, terms = self._shape.tiles is not None, decode_terms(self._shape, probe)
        [took] = yield from self._transient_bytes([probe], self._probe.decode)
        steady_bytes = steady.steady_bytes(terms)
        share = min(max(0.0, (took - terms.grown) / steady_bytes), 1.0) if packed else 1.0
        return max(1.0, (took - share * steady_bytes) / terms.grown), share

    def _possible(self, probes: Sequence[Decode]) -> list[Decode]:
        if not self._probe.batchable:
            probes = [replace(probe, rows=1) for probe in probes]
        return [self._bounded(probe) for probe in probes]

    def _bounded(self, probe: P) -> P:
        """Return the probe with a context whose caches are bounded."""
        token_bytes = cache_bytes(self._shape.layers, probe.rows, GROWTH) // GROWTH
        limit = _MOST_CACHE_BYTES if isinstance(probe, Decode) else _MOST_MERGED_BYTES
        most_tokens = limit // max(1, token_bytes) // GROWTH * GROWTH
        context = min(probe.context * self._context_factor, max(most_tokens, GROWTH))
        return replace(probe, context=context)


def _fit_wide(
    columns: Sequence[tuple[int, ...]], took: Sequence[float], scores: float
) -> tuple[float, float]:
    """Return the factors of activations and of scores in short chunks. That of long contexts,
    `scores`, is below 1 where only the last layer has full attention; short chunks then show more,
    at most `_MOST_SCORES_FACTOR`."""
    _, short_scores = fit(columns, took)
    if short_scores > 1 > scores:
        scores = min(short_scores, _MOST_SCORES_FACTOR)
    without_scores = [
        max(1.0, all_bytes - scores * score_bytes)
        for all_bytes, (_, score_bytes) in zip(took, columns, strict=True)
    ]
    [activations] = fit([(activation_bytes,) for activation_bytes, _ in columns], without_scores)
    return activations, scores
