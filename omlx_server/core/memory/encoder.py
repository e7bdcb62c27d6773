"""The peak memory of a pass of an encoder. Pure.

    R    tokens that go through a layer at a time
    C    tokens that each of them sees
    A    R x (hidden + intermediate + (heads + 2 kv_heads) x head_dim)
    S    R x heads x C: scores, where they are made

Factors of A and S are fitted to probes (compute/planning/encoder_fit.py).
"""

from dataclasses import dataclass

from omlx_server.core.memory.kv import places

# Probes can't see how far the host is ahead of the device.
_MARGIN = 1.05
# Token ids, lengths and masks.
_FLOOR = 1 << 16
_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Sizes in elements of `width` bytes. At most `most_scores` scores are made at a time (0:
    all)."""

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
    """A pass over `rows` texts, padded to `tokens` tokens, `slice_tokens` of all rows at a time."""

    rows: int
    tokens: int
    slice_tokens: int

    @property
    def chunk(self) -> int:
        return min(self.tokens, max(1, self.slice_tokens // self.rows))


@dataclass(frozen=True, slots=True)
class EncoderPlan:
    shape: EncoderShape
    factors: tuple[float, float]

    def needs(self, one: Pass) -> int:
        activations, scores = terms(self.shape, one)
        inner = int((activations * self.factors[0] + scores * self.factors[1]) * _MARGIN)
        return max(inner + chunk_leftover_bytes(self.shape, one), _ending(self.shape, one)) + _FLOOR


def terms(shape: EncoderShape, one: Pass) -> tuple[int, int]:
    chunk = one.chunk if shape.causal else one.tokens
    rows = one.rows * chunk
    wide = shape.hidden + shape.intermediate
    wide += (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    scores = rows * shape.heads * one.tokens
    if shape.most_scores and scores > shape.most_scores:
        least = one.rows * shape.heads * one.tokens
        scores = max(shape.most_scores, least)
    return rows * wide * shape.width, scores * shape.width


def chunk_leftover_bytes(shape: EncoderShape, one: Pass) -> int:
    """Return the bytes of caches and hidden states that chunks leave."""
    if not _in_chunks(shape, one):
        return 0
    step = places(one.chunk)
    apart = step // one.chunk * one.chunk  # buffers grow once in so many tokens
    room = (one.tokens - 1) // apart * apart + step
    layer = 2 * shape.kv_heads * shape.head_dim * shape.width
    caches = one.rows * room * layer * (shape.layers + (room > step))
    return caches + one.rows * one.tokens * shape.hidden * shape.width


def _ending(shape: EncoderShape, one: Pass) -> int:
    number = 2 * (shape.width + _FLOAT32) if _in_chunks(shape, one) else 0
    return one.rows * one.tokens * shape.hidden * number


def _in_chunks(shape: EncoderShape, one: Pass) -> bool:
    return shape.causal and one.chunk < one.tokens


STRUCTURAL = (8.0, 6.0)
"""Factors of A and S without measurements: an upper bound."""
