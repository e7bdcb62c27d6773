"""A model is probed and its coefficients fitted. Mlx thread, at load.

Contexts are short: what is fitted are slopes. Quantised caches are longer at the same number of
bytes, and are read tile by tile, which a short context would not show.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from omlx_server.compute.filled import CannotFill
from omlx_server.compute.loader import LoadedModel
from omlx_server.compute.probe import Bench
from omlx_server.core.memory.bound import STRUCTURAL
from omlx_server.core.memory.estimate import (
    Coefficients,
    Planner,
    Prefills,
    copy_columns,
    deep_columns,
    head_columns,
    wide_columns,
)
from omlx_server.core.memory.features import decode_terms, prefill_terms
from omlx_server.core.memory.fit import fit
from omlx_server.core.memory.kv import GROWTH, cache_bytes
from omlx_server.core.memory.shape import Decode, ModelShape, Prefill
from omlx_server.errors import first_line

_log = logging.getLogger(__name__)

_WIDE_ALONE = (Prefill(1, 16, 0), Prefill(1, 64, 0), Prefill(1, 256, 0))
_DEEP_ALONE = (
    Prefill(1, 8, 1024),
    Prefill(1, 16, 2000),
    Prefill(1, 64, 2000),
    Prefill(1, 128, 512),
    Prefill(1, 128, 1024),
)
_WIDE_TOGETHER = (Prefill(2, 24, 0), Prefill(4, 64, 0), Prefill(2, 128, 0))
_DEEP_TOGETHER = (
    Prefill(2, 64, 256),
    Prefill(4, 8, 1500),
    Prefill(4, 64, 512),
    Prefill(2, 96, 1024),
    Prefill(6, 32, 1000),
)
_LAYERS = (Decode(1, 64), Decode(1, 1000), Decode(4, 64), Decode(4, 1000), Decode(4, 2000))
_HEAD = (Decode(1, 8), Decode(2, 8), Decode(4, 8), Decode(1, 2000), Decode(4, 1000))
_COPIES = (
    Decode(4, 1024, grows=True),
    Decode(4, 1000, left=True),
    Decode(4, 1000, joined=1),
    Decode(4, 1000, joined=4),
    Decode(6, 2000, joined=6),
)
_PACKED_TIMES = 2
_NOISE = 0.05
# No probe fills more than this much of caches, or 256 tokens a row. Several prompts at once are
# copied as a whole, which takes its time.
_CACHE_BYTES = 256 << 20
_MERGED_BYTES = 128 << 20


def calibrate(loaded: LoadedModel, shape: ModelShape) -> Coefficients:
    """Probe a model; where that can't be done, an upper bound, and the log says so."""
    try:
        return _Calibration(loaded, shape).run()
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
        self._times = _PACKED_TIMES if shape.tiles else 1
        self._bench.prefill(Prefill(1, 8, 0))  # what is made once is no step's

    def run(self) -> Coefficients:
        alone = self._prefills(_WIDE_ALONE, _DEEP_ALONE)
        together = alone
        if self._bench.batchable:
            together = self._prefills(_WIDE_TOGETHER, _DEEP_TOGETHER)
        layers = self._decodes(_LAYERS, headless=True)
        head = self._decodes(_HEAD)
        found = Coefficients(alone, together, layers, head, STRUCTURAL.copies)
        return replace(found, copies=self._copies(Planner(self._shape, found)))

    def _prefills(self, wide: Sequence[Prefill], deep: Sequence[Prefill]) -> Prefills:
        longer = [replace(probe, context=self._context(probe)) for probe in deep]
        columns = [deep_columns(prefill_terms(self._shape, probe)) for probe in longer]
        deep_factors = fit(columns, [self._took(probe) for probe in longer])
        scores = deep_factors[1]
        # Short chunks tell little of scores, so theirs is the factor of long ones.
        terms = [wide_columns(prefill_terms(self._shape, probe)) for probe in wide]
        rest = [
            max(1.0, self._took(probe) - scores * of_scores)
            for probe, (_, of_scores) in zip(wide, terms, strict=True)
        ]
        [activations] = fit([(of_activations,) for of_activations, _ in terms], rest)
        return Prefills((activations, scores), deep_factors)

    def _took(self, probe: Prefill) -> float:
        return max(1, self._bench.prefill(probe).transient)

    def _decodes(self, probes: Sequence[Decode], *, headless: bool = False) -> tuple[float, ...]:
        able = self._able(probes)
        terms = [decode_terms(self._shape, probe) for probe in able]
        columns = [t.inner if headless else head_columns(t) for t in terms]
        measure = self._bench.layers if headless else self._bench.decode
        return fit(columns, [max(1, measure(probe).transient) for probe in able])

    def _copies(self, steady: Planner) -> tuple[float, ...]:
        """What copies add to a forward without them. Where that can't be told from noise, they
        may add as much as the noise."""
        able = self._able(_COPIES)
        columns = [copy_columns(decode_terms(self._shape, probe)) for probe in able]
        added = []
        for probe in able:
            rest = steady.steady(probe)
            took = self._bench.decode(probe).transient
            added.append(max(took - rest, _NOISE * rest, 1.0))
        return fit(columns, added)

    def _able(self, probes: Sequence[Decode]) -> list[Decode]:
        """Those that this model can run, with contexts that it has room for."""
        return [
            replace(probe, context=self._context(probe))
            for probe in probes
            if probe.rows == 1 or self._bench.batchable
        ]

    def _context(self, probe: Prefill | Decode) -> int:
        wanted = probe.context * self._times
        token = cache_bytes(self._shape.layers, probe.rows, GROWTH) // GROWTH
        limit = _CACHE_BYTES if isinstance(probe, Decode) else _MERGED_BYTES
        room = limit // max(1, token) // GROWTH * GROWTH
        return min(wanted, max(room, GROWTH))
