"""The bytes alive in the middle of a forward, before any fit.

    R    rows x tokens of the forward        C    tokens that a query sees: context + chunk
    A    R x hidden                          Q    R x (heads + 2 kv_heads) x head_dim
    M    R x intermediate                    S    R x heads x C: scores, where they are made
    K    keys and values of one layer, copied when its buffers grow
    P    caches that are copied because rows come together in a prefill
    U    one tile of quantised keys, unpacked; or keys and values of one layer, made of latents
    V    rows x vocabulary

A, Q and M are multiples of each other for any one model, so a fit sees their sum.
"""

from dataclasses import dataclass

from omlx_server.core.memory.kv import (
    Keeps,
    LayerKv,
    cache_bytes,
    grows,
    largest_at_most,
    largest_layer,
    places_with_room,
)
from omlx_server.core.memory.shape import (
    FEW_QUERIES,
    FEWEST_WIDENED,
    MOST_BEHIND,
    WIDENED_AT_ONCE,
    Decode,
    ModelShape,
    PrefillShape,
)

_FLOAT32 = 4
_TILES_ALIVE = 1.6
# Few queries keep the unpacked tile longer.
_UNPACKED_FOR_MANY = 0.6
# Rows gathered in an array, and the last pieces still alive; more with stored tokens.
_GATHERED, _GATHERED_STORED = 1.15, 1.6
# Stored and own tokens are joined for one layer while some of the last is still alive.
_JOINED = 1.1
# Rings of new rows still hold the last chunk.
_LAST_CHUNK = 256


@dataclass(frozen=True, slots=True)
class Terms:
    activations: int
    scores: int
    unpacked: int
    grown: int = 0
    copied: int = 0
    logits: int = 0

    @property
    def inner(self) -> tuple[int, ...]:
        return self.activations, self.scores, self.unpacked


def prefill_terms(model: ModelShape, prefill: PrefillShape) -> Terms:
    rows, context, tokens = prefill.rows, prefill.context, prefill.tokens
    merged = rows > 1 and context > 0
    layers = _moved(model, prefill) if context > 0 else 0
    return Terms(
        *_inner(model, rows, tokens, context),
        grown=int(layers * rows * largest_layer(model.layers, context + tokens, tokens)),
        copied=_merged(model, rows, tokens, context) if merged else 0,
    )


def _moved(model: ModelShape, prefill: PrefillShape) -> float:
    rows, context, tokens = prefill.rows, prefill.context, prefill.tokens
    growing = any(layer.keeps is Keeps.GROWING for layer in model.layers)
    if prefill.refers and growing and model.tiles is None:
        return 0.0 if _is_in_parts(model, tokens) else _JOINED
    if rows == 1:
        return float(grows(context, tokens))
    padded = any(layer.is_padded or layer.keeps is Keeps.RING for layer in model.layers)
    return float(padded or places_with_room(context) < context + tokens)


def _is_in_parts(model: ModelShape, tokens: int) -> bool:
    reads_arrays = any(layer.reads_padding or layer.latent for layer in model.layers)
    return tokens <= FEW_QUERIES and not reads_arrays


def decode_terms(model: ModelShape, decode: Decode) -> Terms:
    rows, context = decode.rows, decode.context
    return Terms(
        *_inner(model, rows, decode.tokens, context),
        grown=rows * largest_at_most(model.layers, context) if decode.grows else 0,
        logits=rows * decode.tokens * model.vocab * model.width,
    )


def widened_bytes(model: ModelShape, decode: Decode) -> int:
    """Return the bytes of stored tokens that a decode widens: keys, values, and a tile of both."""
    if not decode.refers:
        return 0
    shapes = [model] if model.drafter is None else [model, model.drafter]
    return max(_widened(shape, decode.context) for shape in shapes)


def widened_bytes_for_few(model: ModelShape, prefill: PrefillShape) -> int:
    parts = prefill.refers and _is_in_parts(model, prefill.tokens)
    return _widened(model, prefill.context) if parts else 0


def _widened(model: ModelShape, context: int) -> int:
    growing = any(layer.keeps is Keeps.GROWING for layer in model.layers)
    if not growing or model.tiles is not None or model.width == _FLOAT32:
        return 0
    token = model.kv_heads * model.head_dim
    tile = min(context, max(FEWEST_WIDENED, WIDENED_AT_ONCE // token))
    return 3 * tile * token * _FLOAT32


def gathered_bytes(model: ModelShape, decode: Decode) -> int:
    several = decode.tokens > 1
    tokens = [
        layer.nbytes for layer in model.layers if layer.reads_padding or (layer.latent and several)
    ]
    if not tokens or not (decode.refers or decode.uneven):
        return 0
    share = _GATHERED_STORED if decode.refers else _GATHERED
    return int(share * decode.rows * decode.context * max(tokens))


def copied_ring_bytes(model: ModelShape, decode: Decode) -> int:
    if decode.tokens == 1:
        return 0
    before = 0
    if model.drafter is not None:
        before = cache_bytes(_rings(model.drafter), decode.rows, decode.context)
    return before + decode.rows * largest_layer(_rings(model), decode.context)


def _rings(model: ModelShape) -> list[LayerKv]:
    return [layer for layer in model.layers if layer.keeps is Keeps.RING]


def catch_up_terms(model: ModelShape, decode: Decode) -> tuple[int, ...]:
    if model.drafter is None or not decode.catches_up:
        return 0, 0, 0
    return _inner(model.drafter, decode.rows, MOST_BEHIND, decode.context)


def verified_state_bytes(model: ModelShape, decode: Decode) -> int:
    if decode.tokens == 1:
        return 0
    constant = (layer for layer in model.layers if layer.keeps is Keeps.CONSTANT)
    return 2 * decode.rows * sum(layer.nbytes * layer.count for layer in constant)


def _inner(model: ModelShape, rows: int, tokens: int, context: int) -> tuple[int, int, int]:
    tile, few = _tile(model, rows, tokens, context + tokens)
    wide = model.hidden + model.intermediate
    wide += (model.heads + 2 * model.kv_heads) * model.head_dim
    scores = rows * tokens * model.heads * tile * (_FLOAT32 if model.tiles else model.width)
    each = model.tiles.number_bytes if model.tiles else 0
    numbers = rows * model.kv_heads * model.head_dim * tile * each
    unpacked = numbers if few else int(numbers * _UNPACKED_FOR_MANY)
    if tokens > 1 and any(layer.latent for layer in model.layers):
        unpacked += 2 * rows * (context + tokens) * model.heads * model.head_dim * model.width
    return rows * tokens * wide * model.width, scores, unpacked


def _merged(model: ModelShape, rows: int, tokens: int, context: int) -> int:
    return min(
        cache_bytes(model.layers, rows, context, _LAST_CHUNK),
        cache_bytes(model.layers, rows, context + tokens, tokens),
    )


def _tile(model: ModelShape, rows: int, tokens: int, seen: int) -> tuple[int, bool]:
    tiles = model.tiles
    if tiles is None:
        return seen, False
    # Queries that share one head's keys.
    few = tokens * max(1, model.heads // max(1, model.kv_heads)) < tiles.many_rows
    numbers = tiles.numbers_of_few if few else tiles.numbers_of_many
    one = max(1, rows * model.kv_heads * model.head_dim)
    return min(seen, int(max(tiles.fewest, numbers // one) * _TILES_ALIVE)), few
