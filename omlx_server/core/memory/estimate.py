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
    Keeps,
    attended_tokens,
    behind_rings,
    held_bytes,
    referred_bytes,
)
from omlx_server.core.memory.shape import Decode, ModelShape, PrefillShape, StepShape

# Probes can't see how far the host is ahead of the device.
_MARGIN = 1.05
# Token ids, positions, and masks of a few tokens.
_FLOOR = 1 << 14
# A correction falls even if nothing runs, so a freak measurement can't refuse all for ever.
HALF_LIFE_SECONDS = 60.0
HIGHEST = 4.0
CHUNK = 512
"""The default of the most tokens of a chunk."""


@dataclass(frozen=True, slots=True)
class PrefillFactors:
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
        wanted = min(measured / estimated, HIGHEST) if estimated > 0 else 1.0
        self._excess = max(self.ratio(now) - 1.0, wanted - 1.0)
        self._at = max(now, self._at)


class Planner:
    def __init__(self, model: ModelShape, coefficients: Coefficients, chunk: int = CHUNK) -> None:
        self.model = model
        self.coefficients = coefficients
        self.chunk = chunk
        self.adapter_token_bytes = 0
        self._decodes = Correction()
        self._prefills = Correction()

    def transient(self, step: StepShape) -> int:
        """Return the peak bytes of a step above what `live` counts."""
        return self._at_once(*self._parts(step)) + self._behind_rings(step)

    def prefill(self, prefill: PrefillShape) -> int:
        factors = self.coefficients.together if prefill.rows > 1 else self.coefficients.alone
        shallow = prefill_terms(self.model, PrefillShape(prefill.rows, prefill.tokens, 0))
        deep = prefill_terms(self.model, prefill) if prefill.context else shallow
        wide = times(wide_columns(shallow), factors.wide)
        deepest = times(deep_columns(deep), factors.deep)
        deepest += widened_bytes_for_few(self.model, prefill)
        adapted = prefill.rows * prefill.tokens * self.adapter_token_bytes
        return _rounded(max(wide, deepest) + adapted)

    def decode(self, decode: Decode) -> int:
        """Return a decode's bytes. One that grows can copy a layer of all rows, or some layers
        twice."""
        terms = decode_terms(self.model, decode)
        steady = self._verifying(decode, terms) if decode.tokens > 1 else self.steady_bytes(terms)
        behind = catch_up_terms(self.model, decode)
        steady = max(steady, times(behind, self.coefficients.alone.deep[:3]))
        steady += widened_bytes(self.model, decode)
        steady += decode.rows * decode.tokens * self.adapter_token_bytes
        for part in (verified_state_bytes, gathered_bytes, copied_ring_bytes):
            steady += part(self.model, decode)
        if not terms.grown:
            return _rounded(steady)
        copied = times((terms.grown, steady), self.coefficients.copies)
        rows, layers = [decode.context] * decode.rows, self.model.layers
        twice = [layer for layer in layers if layer.keeps in (Keeps.PADDED, Keeps.RING)]
        at_once = (
            min(held_bytes(some, rows), self.model.copied_at_once) for some in (layers, twice)
        )
        return _rounded(max(steady, copied, sum(at_once)))

    def steady_bytes(self, terms: Terms) -> float:
        factors = self.coefficients
        return max(
            times(terms.inner, factors.layers),
            times(wide_columns(terms), factors.alone.wide),
            times(wide_columns(terms), factors.alone.deep[:2]),
            times(head_columns(terms), factors.head),
        )

    def _verifying(self, decode: Decode, terms: Terms) -> float:
        as_prefill = times(terms.inner, self.coefficients.alone.deep[:3])
        if self.model.tiles is not None:
            one = decode_terms(self.model, replace(decode, tokens=1))
            terms = replace(terms, scores=one.scores, unpacked=one.unpacked)
        return max(self.steady_bytes(terms), as_prefill)

    def live(self, rows: Sequence[int], prefills: Sequence[int] = (), in_blocks: int = 0) -> int:
        """Return the most bytes of the caches of `rows` and `prefills`, without growing caches
        of `in_blocks` tokens."""
        layers = self.model.layers
        # Rings hold the whole last chunk, which may exceed the grid.
        longest = self.chunk + self.chunk // 8
        under_way = (held_bytes(layers, [tokens], longest) for tokens in prefills)
        return held_bytes(layers, rows) + sum(under_way) - referred_bytes(layers, in_blocks)

    def worst_decode(self, rows: Sequence[int], leaving: Sequence[int] = ()) -> Decode | None:
        seen = attended_tokens(self.model.layers, rows, leaving)
        if not rows:
            return None
        return Decode(len(rows), seen, grows=True, refers=True, catches_up=True)

    def stored_bytes(self, tokens: int, checkpoints: int = 0, *, refers: bool = False) -> int:
        """Return the bytes of new blocks and checkpoints beside the caches."""
        layers = self.model.layers
        apart = (Keeps.CONSTANT, Keeps.GROWING) if refers else (Keeps.CONSTANT,)
        token = sum(layer.nbytes * layer.count for layer in layers if layer.keeps not in apart)
        constant = (layer for layer in layers if layer.keeps is Keeps.CONSTANT)
        checkpoint = sum(layer.nbytes * layer.count for layer in constant)
        return tokens * token + checkpoints * checkpoint

    def corrected(self, step: StepShape, now: float) -> int:
        decode, prefill = self._parts(step)
        decodes, prefills = self._decodes.ratio(now), self._prefills.ratio(now)
        return self._at_once(decode * decodes, prefill * prefills) + self._behind_rings(step)

    def observe(self, step: StepShape, measured: int, now: float) -> None:
        decode, prefill = self._parts(step)
        part = self._prefills if prefill >= decode else self._decodes
        part.observe(self._at_once(decode, prefill), measured, now)

    def _at_once(self, decode: float, prefill: float) -> int:
        return int(decode + 2 * prefill if self.model.beside_host else max(decode, prefill))

    def _parts(self, step: StepShape) -> tuple[int, int]:
        decode = self.decode(step.decode) if step.decode else 0
        return decode, max(map(self.prefill, step.prefills), default=0)

    def _behind_rings(self, step: StepShape) -> int:
        if step.decode is None:
            return 0
        layers = self.model.layers
        chunks = sum(p.rows * behind_rings(layers, p.tokens) for p in step.prefills)
        grouped = (p.tokens for p in step.prefills if p.rows > 1)
        widest = max((step.decode.tokens, *grouped))
        return max(chunks, step.decode.rows * behind_rings(layers, widest))


class FlatPlanner(Planner):
    def __init__(self, model: ModelShape, nbytes: int) -> None:
        super().__init__(model, STRUCTURAL)
        self._nbytes = nbytes

    def prefill(self, prefill: PrefillShape) -> int:
        return self._nbytes

    def decode(self, decode: Decode) -> int:
        return self._nbytes


def times(columns: Sequence[float], factors: Sequence[float]) -> float:
    return sum([column * factor for column, factor in zip(columns, factors, strict=True)])


def _rounded(nbytes: float) -> int:
    return int(nbytes * _MARGIN) + _FLOOR
