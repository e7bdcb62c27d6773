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
    """Sizes in elements of `width` bytes. `most_scores` are made at a time, if not 0."""

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
    """Estimates an encoder's passes by fitted factors of A and S."""

    shape: EncoderShape
    factors: tuple[float, float]

    def needs(self, one_pass: Pass) -> int:
        activations, scores = terms(self.shape, one_pass)
        inner = int((activations * self.factors[0] + scores * self.factors[1]) * _MARGIN)
        layers = inner + chunk_leftover_bytes(self.shape, one_pass)
        return max(layers, _last_states_bytes(self.shape, one_pass)) + _FLOOR


def terms(shape: EncoderShape, one_pass: Pass) -> tuple[int, int]:
    """Return the bytes of A and of S."""
    chunk = one_pass.chunk if shape.causal else one_pass.tokens
    rows = one_pass.rows * chunk
    row_numbers = shape.hidden + shape.intermediate
    row_numbers += (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    scores = rows * shape.heads * one_pass.tokens
    if shape.most_scores and scores > shape.most_scores:
        least = one_pass.rows * shape.heads * one_pass.tokens
        scores = max(shape.most_scores, least)
    return rows * row_numbers * shape.width, scores * shape.width


def chunk_leftover_bytes(shape: EncoderShape, one_pass: Pass) -> int:
    """Return the bytes of caches and hidden states that chunks leave."""
    if not _is_chunked(shape, one_pass):
        return 0
    growth = places(one_pass.chunk)
    tokens_apart = growth // one_pass.chunk * one_pass.chunk  # buffers grow once in so many
    room = (one_pass.tokens - 1) // tokens_apart * tokens_apart + growth
    token_bytes = 2 * shape.kv_heads * shape.head_dim * shape.width
    layers = shape.layers + (room > growth)  # one is copied while it grows
    caches = one_pass.rows * room * token_bytes * layers
    return caches + one_pass.rows * one_pass.tokens * shape.hidden * shape.width


def _last_states_bytes(shape: EncoderShape, one_pass: Pass) -> int:
    # Chunks leave states that are joined, and widened to float32, at the end.
    if not _is_chunked(shape, one_pass):
        return 0
    return one_pass.rows * one_pass.tokens * shape.hidden * 2 * (shape.width + _FLOAT32)


def _is_chunked(shape: EncoderShape, one_pass: Pass) -> bool:
    return shape.causal and one_pass.chunk < one_pass.tokens


STRUCTURAL = (8.0, 6.0)
"""Factors of A and S without measurements: an upper bound."""
