"""What is alive in the middle of a forward, in bytes, before anything is fitted.

    R    rows x tokens of the forward        C    tokens that a query sees: context + chunk
    A    R x hidden                          Q    R x (heads + 2 kv_heads) x head_dim
    M    R x intermediate                    S    R x heads x C: scores, where they are made
    K    keys and values of one layer, copied when its buffers grow
    P    caches that are copied because rows come together, and of those the rings apart; E, all of
         the first row that enters a batch
    U    one tile of quantised keys, unpacked
    V    rows x vocabulary

A, Q and M are multiples of each other for any one model, so a fit sees their sum.
"""

from dataclasses import dataclass, replace

from omlx_server.core.memory.kv import Keeps, LayerKv, cache_bytes, grows, largest_layer
from omlx_server.core.memory.shape import Decode, ModelShape, Prefill

_FLOAT32 = 4
_TILES_ALIVE = 1.6
# Rings of rows that come in still hold what was read last.
_LAST_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Terms:
    """Bytes of one forward."""

    activations: int
    scores: int
    unpacked: int
    grown: int
    copied: int
    copied_rings: int
    logits: int
    entered: int = 0

    @property
    def inner(self) -> tuple[int, ...]:
        """What the layers need, growth and copies aside."""
        return self.activations, self.scores, self.unpacked


def prefill_terms(model: ModelShape, prefill: Prefill) -> Terms:
    """Of a chunk, or of several together. Its logits are never made."""
    copied = prefill.rows - 1 if prefill.context else 0
    full = prefill.rows > 1 or grows(prefill.context, prefill.tokens)
    moves = prefill.context > 0 and full
    return _terms(model, prefill, copied=copied, heads=0, moves=moves)


def decode_terms(model: ModelShape, decode: Decode) -> Terms:
    """Of one token a row."""
    # The first row that comes is read into the place of the batch, each further one kept for it.
    came = min(decode.joined, decode.rows - 1)
    forward = Prefill(decode.rows, 1, decode.context)
    moves = decode.grows or decode.left or came > 0
    copied = max(0, came - 1)
    terms = _terms(model, forward, copied=copied, heads=decode.rows, moves=moves)
    entered = cache_bytes(model.layers, min(came, 1), decode.context, _LAST_CHUNK)
    return replace(terms, entered=entered)


def _terms(model: ModelShape, forward: Prefill, *, copied: int, heads: int, moves: bool) -> Terms:
    """`moves`: each layer's keys and values are copied to where there is room for more."""
    rows, seen = forward.rows, forward.context + forward.tokens
    tokens = rows * forward.tokens
    tile = _tile(model, forward)
    wide = model.hidden + model.intermediate
    wide += (model.heads + 2 * model.kv_heads) * model.head_dim
    grown = rows * largest_layer(model.layers, seen, forward.tokens)
    few = model.tiles is not None and _query_rows(model, forward) < model.tiles.many_rows
    numbers = rows * model.kv_heads * model.head_dim * tile
    return Terms(
        activations=tokens * wide * model.width,
        scores=tokens * model.heads * tile * (_FLOAT32 if model.tiles else model.width),
        unpacked=numbers * _FLOAT32 if few else 0,
        grown=grown if moves else 0,
        copied=cache_bytes(_kept(model, rings=False), copied, forward.context),
        copied_rings=cache_bytes(_kept(model, rings=True), copied, forward.context, _LAST_CHUNK),
        logits=heads * model.vocab * model.width,
    )


def _tile(model: ModelShape, forward: Prefill) -> int:
    """How many tokens' scores are alive. The next tile begins before all of the last is gone."""
    seen = forward.context + forward.tokens
    tiles = model.tiles
    if tiles is None:
        return seen
    many = _query_rows(model, forward) >= tiles.many_rows
    numbers = tiles.numbers_of_many if many else tiles.numbers_of_few
    one = max(1, forward.rows * model.kv_heads * model.head_dim)
    return min(seen, int(max(tiles.fewest, numbers // one) * _TILES_ALIVE))


def _kept(model: ModelShape, *, rings: bool) -> list[LayerKv]:
    return [layer for layer in model.layers if (layer.keeps is Keeps.RING) == rings]


def _query_rows(model: ModelShape, forward: Prefill) -> int:
    """Those that share one head's keys."""
    return forward.tokens * max(1, model.heads // max(1, model.kv_heads))
