"""Estimates the transient memory of a step: its peak above weights and caches. Pure.

The largest of these moments counts:

    wide    a prefill as it would be without a context   alone or together
    deep    a prefill while it attends to its context    alone or together
    layers  a decode before its head
    head    a decode with logits
    copies  a decode while it copies one layer of the caches
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx_server.core.memory.features import (
    Terms,
    catch_up_terms,
    copied_ring_bytes,
    decode_terms,
    gathered_bytes,
    prefill_terms,
    verified_state_bytes,
    widened_bytes,
    widened_bytes_for_few,
)
from omlx_server.core.memory.kv import (
    Decode,
    Keeps,
    ModelShape,
    PrefillShape,
    StepShape,
    attended_tokens,
    bytes_behind_rings,
    held_bytes,
    referred_bytes,
)

# Probes can't see how far the host is ahead of the device.
_MARGIN = 1.05
# Token ids, positions, and masks of a few tokens.
_FLOOR = 1 << 14
# A correction falls even if nothing runs, so a freak measurement can't refuse all for ever.
HALF_LIFE_SECONDS = 60.0
HIGHEST_RATIO = 4.0
DEFAULT_CHUNK = 512
"""The default of the most tokens of a chunk."""


@dataclass(frozen=True, slots=True)
class PrefillFactors:
    """Factors of `wide_columns` and `deep_columns`."""

    wide: tuple[float, ...]
    deep: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Factors of the columns below, fitted to probes if `calibrated`, else an upper bound."""

    alone: PrefillFactors
    together: PrefillFactors
    layers: tuple[float, ...]
    head: tuple[float, ...]
    copies: tuple[float, float]
    calibrated: bool = True


# Without measurements: the highest factors of any known model, all at once. An upper bound.
_ACTIVATIONS = 8.0
_SCORES = 6.0
_UNPACKED = 12.0
_GROWN = 3.0
_COPIED = 2.5
_LOGITS = 4.0

_INNER = (_ACTIVATIONS, _SCORES, _UNPACKED)
_PREFILLS = PrefillFactors(wide=_INNER[:2], deep=(*_INNER, _GROWN, _COPIED))

STRUCTURAL = Coefficients(
    alone=_PREFILLS,
    together=_PREFILLS,
    layers=_INNER,
    head=(_LOGITS, *_INNER),
    copies=(_GROWN, 1.0),
    calibrated=False,
)


def wide_columns(terms: Terms) -> tuple[int, ...]:
    return terms.activations, terms.scores


def deep_columns(terms: Terms) -> tuple[int, ...]:
    return *terms.inner, terms.grown, terms.copied


def head_columns(terms: Terms) -> tuple[int, ...]:
    return terms.logits, *terms.inner


@dataclass(slots=True)
class Correction:
    """A ratio that corrects estimates by what steps took."""

    _excess: float = 0.0
    _at: float = 0.0

    def ratio(self, now: float) -> float:
        return 1.0 + self._excess * math.exp2(-max(0.0, now - self._at) / HALF_LIFE_SECONDS)

    def observe(self, estimated: int, measured: int, now: float) -> None:
        measured_ratio = min(measured / estimated, HIGHEST_RATIO) if estimated > 0 else 1.0
        self._excess = max(self.ratio(now), measured_ratio) - 1.0
        self._at = max(now, self._at)


class Planner:
    """Estimates bytes of one model's steps and caches, in chunks of at most `chunk` tokens."""

    def __init__(
        self, model: ModelShape, coefficients: Coefficients, chunk: int = DEFAULT_CHUNK
    ) -> None:
        self.model = model
        self.coefficients = coefficients
        self.chunk = chunk
        self.adapter_token_bytes = 0
        self._decodes = Correction()
        self._prefills = Correction()

    def transient(self, step: StepShape) -> int:
        """Return the peak bytes of a step above what `live` counts."""
        decode, prefill = self._decode_and_prefill_bytes(step)
        return self._peak_bytes(decode, prefill) + self._bytes_behind_rings(step)

    def prefill(self, prefill: PrefillShape) -> int:
        factors = self.coefficients.together if prefill.rows > 1 else self.coefficients.alone
        shallow_terms = prefill_terms(self.model, PrefillShape(prefill.rows, prefill.tokens, 0))
        deep_terms = prefill_terms(self.model, prefill) if prefill.context else shallow_terms
        wide = weighted_sum(wide_columns(shallow_terms), factors.wide)
        deep = weighted_sum(deep_columns(deep_terms), factors.deep)
        deep += widened_bytes_for_few(self.model, prefill)
        adapter_bytes = prefill.rows * prefill.tokens * self.adapter_token_bytes
        return _with_margin(max(wide, deep) + adapter_bytes)

    def decode(self, decode: Decode) -> int:
        """Return a decode's bytes. One that grows copies a layer of all rows, or some twice."""
        terms = decode_terms(self.model, decode)
        verifies = decode.tokens > 1
        steady = self._verifying_bytes(decode, terms) if verifies else self.steady_bytes(terms)
        catch_up = catch_up_terms(self.model, decode)
        steady = max(steady, weighted_sum(catch_up, self.coefficients.alone.deep[:3]))
        steady += widened_bytes(self.model, decode)
        steady += decode.rows * decode.tokens * self.adapter_token_bytes
        for bytes_of in (verified_state_bytes, gathered_bytes, copied_ring_bytes):
            steady += bytes_of(self.model, decode)
        if not terms.grown:
            return _with_margin(steady)
        copied = weighted_sum((terms.grown, steady), self.coefficients.copies)
        rows, layers = [decode.context] * decode.rows, self.model.layers
        copied_twice = [layer for layer in layers if layer.keeps in (Keeps.PADDED, Keeps.RING)]
        most = self.model.copied_at_once
        at_once = min(held_bytes(layers, rows), most) + min(held_bytes(copied_twice, rows), most)
        return _with_margin(max(steady, copied, at_once))

    def steady_bytes(self, terms: Terms) -> float:
        """Return a decode's bytes without what is copied or grows."""
        factors = self.coefficients
        return max(
            weighted_sum(terms.inner, factors.layers),
            weighted_sum(wide_columns(terms), factors.alone.wide),
            weighted_sum(wide_columns(terms), factors.alone.deep[:2]),
            weighted_sum(head_columns(terms), factors.head),
        )

    def _verifying_bytes(self, decode: Decode, terms: Terms) -> float:
        as_prefill = weighted_sum(terms.inner, self.coefficients.alone.deep[:3])
        if self.model.tiles is not None:  # quantised: scores and tiles as of one token
            one_token = decode_terms(self.model, replace(decode, tokens=1))
            terms = replace(terms, scores=one_token.scores, unpacked=one_token.unpacked)
        return max(self.steady_bytes(terms), as_prefill)

    def live(self, rows: Sequence[int], prefills: Sequence[int] = (), in_blocks: int = 0) -> int:
        """Return the most bytes of caches, without `in_blocks` tokens that are in blocks."""
        layers = self.model.layers
        # Rings hold the whole last chunk, which may exceed the grid.
        longest = self.chunk + self.chunk // 8
        prefill_bytes = sum(held_bytes(layers, [tokens], longest) for tokens in prefills)
        return held_bytes(layers, rows) + prefill_bytes - referred_bytes(layers, in_blocks)

    def worst_decode(self, rows: Sequence[int], leaving: Sequence[int] = ()) -> Decode | None:
        if not rows:
            return None
        context = attended_tokens(self.model.layers, rows, leaving)
        return Decode(len(rows), context, grows=True, refers=True, catches_up=True)

    def stored_bytes(self, tokens: int, checkpoints: int = 0, *, refers: bool = False) -> int:
        """Return the bytes of new blocks and checkpoints beside the caches."""
        layers = self.model.layers
        not_in_blocks = (Keeps.CONSTANT, Keeps.GROWING) if refers else (Keeps.CONSTANT,)
        in_blocks = (layer for layer in layers if layer.keeps not in not_in_blocks)
        token_bytes = sum(layer.nbytes * layer.count for layer in in_blocks)
        constant = (layer for layer in layers if layer.keeps is Keeps.CONSTANT)
        checkpoint_bytes = sum(layer.nbytes * layer.count for layer in constant)
        return tokens * token_bytes + checkpoints * checkpoint_bytes

    def corrected(self, step: StepShape, now: float) -> int:
        """Return `transient`, corrected by what recent steps took."""
        decode, prefill = self._decode_and_prefill_bytes(step)
        decodes, prefills = self._decodes.ratio(now), self._prefills.ratio(now)
        return self._peak_bytes(decode * decodes, prefill * prefills) + self._bytes_behind_rings(
            step
        )

    def observe(self, step: StepShape, measured: int, now: float) -> None:
        decode, prefill = self._decode_and_prefill_bytes(step)
        correction = self._prefills if prefill >= decode else self._decodes
        correction.observe(self._peak_bytes(decode, prefill), measured, now)

    def _peak_bytes(self, decode: float, prefill: float) -> int:
        # Work is launched ahead there: a decode and two prefills may be alive at once.
        return int(decode + 2 * prefill if self.model.beside_host else max(decode, prefill))

    def _decode_and_prefill_bytes(self, step: StepShape) -> tuple[int, int]:
        decode = self.decode(step.decode) if step.decode else 0
        return decode, max(map(self.prefill, step.prefills), default=0)

    def _bytes_behind_rings(self, step: StepShape) -> int:
        if step.decode is None:
            return 0
        layers = self.model.layers
        chunks = sum(p.rows * bytes_behind_rings(layers, p.tokens) for p in step.prefills)
        grouped = (p.tokens for p in step.prefills if p.rows > 1)
        widest = max((step.decode.tokens, *grouped))
        return max(chunks, step.decode.rows * bytes_behind_rings(layers, widest))


class FlatPlanner(Planner):
    """Takes the same bytes for each forward."""

    def __init__(self, model: ModelShape, nbytes: int) -> None:
        super().__init__(model, STRUCTURAL)
        self._nbytes = nbytes

    def prefill(self, prefill: PrefillShape) -> int:
        return self._nbytes

    def decode(self, decode: Decode) -> int:
        return self._nbytes


def weighted_sum(columns: Sequence[float], factors: Sequence[float]) -> float:
    return sum([column * factor for column, factor in zip(columns, factors, strict=True)])


def _with_margin(nbytes: float) -> int:
    return int(nbytes * _MARGIN) + _FLOOR
