"""How much memory a pass of a model that reads takes, from its beginning to its end. Pure.

    R    tokens that go through a layer at a time
    C    tokens that each of them sees
    A    R x (hidden + intermediate + (heads + 2 kv_heads) x head_dim)
    S    R x heads x C: scores, where they are made

Factors of A and S are fitted to probes, as those of steps are (core/memory/estimate.py). What a
text that is read in chunks leaves behind is known by its structure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from omlx_server.core.memory.fit import fit
from omlx_server.core.memory.kv import places

# What probes can't see: how far the host happens to be ahead of the device.
_MARGIN = 1.05
# Token ids, lengths, masks: below this everything is the same.
_FLOOR = 1 << 16
_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class ReaderShape:
    """Sizes of a model in elements; `width` is the bytes of one. Of scores no more than
    `most_scores` are made at a time. One that is `causal` reads more than a slice in chunks, behind
    which caches grow; any other one sees all of a text in each layer."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    causal: bool
    most_scores: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """`rows` texts, padded to `tokens`. A causal model reads so many of all rows at a time."""

    rows: int
    tokens: int
    slice_tokens: int

    @property
    def chunk(self) -> int:
        """How many of a row's tokens a causal model reads at a time."""
        return min(self.tokens, max(1, self.slice_tokens // self.rows))


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """What passes of one model take: factors of A and S."""

    shape: ReaderShape
    factors: tuple[float, float]

    def needs(self, one: Pass) -> int:
        """Bytes above what is held before it."""
        activations, scores = terms(self.shape, one)
        inner = int((activations * self.factors[0] + scores * self.factors[1]) * _MARGIN)
        return max(inner + left_behind(self.shape, one), _ending(self.shape, one)) + _FLOOR


def terms(shape: ReaderShape, one: Pass) -> tuple[int, int]:
    """Bytes of A and S."""
    chunk = one.chunk if shape.causal else one.tokens
    rows = one.rows * chunk
    wide = shape.hidden + shape.intermediate
    wide += (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    scores = rows * shape.heads * one.tokens
    if shape.most_scores and scores > shape.most_scores:
        least = one.rows * shape.heads * one.tokens
        scores = max(shape.most_scores, least)
    return rows * wide * shape.width, scores * shape.width


def left_behind(shape: ReaderShape, one: Pass) -> int:
    """What chunks leave until the last of them is read: keys and values of all layers, those of one
    twice while its buffers grow; the hidden states."""
    if not _in_chunks(shape, one):
        return 0
    step = places(one.chunk)
    apart = step // one.chunk * one.chunk  # buffers grow once in so many tokens
    room = (one.tokens - 1) // apart * apart + step
    layer = 2 * shape.kv_heads * shape.head_dim * shape.width
    caches = one.rows * room * layer * (shape.layers + (room > step))
    return caches + one.rows * one.tokens * shape.hidden * shape.width


def _ending(shape: ReaderShape, one: Pass) -> int:
    """The hidden states of all chunks, then as one, then twice in float32: the caches are gone."""
    number = 2 * (shape.width + _FLOAT32) if _in_chunks(shape, one) else 0
    return one.rows * one.tokens * shape.hidden * number


def _in_chunks(shape: ReaderShape, one: Pass) -> bool:
    return shape.causal and one.chunk < one.tokens


def fitted(shape: ReaderShape, probes: Iterable[tuple[Pass, int]]) -> ReaderPlan:
    """From what passes took. Raises ValueError where they took nothing."""
    inner = [(terms(shape, one), took - left_behind(shape, one)) for one, took in probes]
    found = [(row, took) for row, took in inner if took > 0]
    activations, scores = fit([row for row, _ in found], [took for _, took in found])
    return ReaderPlan(shape, (activations, scores))


STRUCTURAL = (8.0, 6.0)
"""Factors where nothing could be measured: an upper bound."""
