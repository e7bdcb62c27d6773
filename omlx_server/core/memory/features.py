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
    FEW_QUERIES,
    FEWEST_WIDENED,
    MOST_BEHIND,
    WIDENED_AT_ONCE,
    Decode,
    Keeps,
    LayerKv,
    ModelShape,
    PrefillShape,
    cache_bytes,
    grows,
    largest_layer,
    most_of_largest_layer,
    places_with_room,
)

_FLOAT32 = 4
# Parts of a tensor that are alive at the peak, as `scripts/bench memory` measured. `LayerKv` in
# kv.py says what the flags of a layer mean.
_TILES_ALIVE = 1.6
# Few queries keep the unpacked tile longer.
_UNPACKED_FOR_MANY = 0.6
# Rows gathered in an array, and the last pieces still alive; more with stored tokens.
_GATHERED_SHARE, _GATHERED_STORED_SHARE = 1.15, 1.6
# Stored and own tokens are joined for one layer while some of the last is still alive.
_JOINED_LAYERS = 1.1
# Rings of new rows still hold the last chunk.
_LAST_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Terms:
    """Bytes that the factors of a fit are multiplied with."""

    activations: int  # A + Q + M
    scores: int  # S
    unpacked: int  # U
    grown: int = 0  # K
    copied: int = 0  # P
    logits: int = 0  # V

    @property
    def inner(self) -> tuple[int, ...]:
        return self.activations, self.scores, self.unpacked


def prefill_terms(model: ModelShape, prefill: PrefillShape) -> Terms:
    rows, context, tokens = prefill.rows, prefill.context, prefill.tokens
    is_merged = rows > 1 and context > 0
    layers = _copied_layers(model, prefill) if context > 0 else 0
    return Terms(
        *_inner_terms(model, rows, tokens, context),
        grown=int(layers * rows * largest_layer(model.layers, context + tokens, tokens)),
        copied=_merged_cache_bytes(model, rows, tokens, context) if is_merged else 0,
    )


def _copied_layers(model: ModelShape, prefill: PrefillShape) -> float:
    # Returns how many layers' keys and values are copied at once.
    rows, context, tokens = prefill.rows, prefill.context, prefill.tokens
    if prefill.refers and _has_growing_layers(model) and model.tiles is None:
        return 0.0 if _attends_in_parts(model, tokens) else _JOINED_LAYERS
    if rows == 1:
        return float(grows(context, tokens))
    is_padded = any(layer.is_padded or layer.keeps is Keeps.RING for layer in model.layers)
    return float(is_padded or places_with_room(context) < context + tokens)


def _attends_in_parts(model: ModelShape, tokens: int) -> bool:
    reads_arrays = any(layer.reads_padding or layer.latent for layer in model.layers)
    return tokens <= FEW_QUERIES and not reads_arrays


def decode_terms(model: ModelShape, decode: Decode) -> Terms:
    rows, context = decode.rows, decode.context
    return Terms(
        *_inner_terms(model, rows, decode.tokens, context),
        grown=rows * most_of_largest_layer(model.layers, context) if decode.grows else 0,
        logits=rows * decode.tokens * model.vocab * model.width,
    )


def widened_bytes(model: ModelShape, decode: Decode) -> int:
    """Return the bytes of stored tokens that a decode widens to float32."""
    if not decode.refers:
        return 0
    shapes = [model] if model.drafter is None else [model, model.drafter]
    return max(_widened_tile_bytes(shape, decode.context) for shape in shapes)


def widened_bytes_for_few(model: ModelShape, prefill: PrefillShape) -> int:
    in_parts = prefill.refers and _attends_in_parts(model, prefill.tokens)
    return _widened_tile_bytes(model, prefill.context) if in_parts else 0


def _widened_tile_bytes(model: ModelShape, context: int) -> int:
    if not _has_growing_layers(model) or model.tiles is not None or model.width == _FLOAT32:
        return 0
    token_numbers = model.kv_heads * model.head_dim
    tile_tokens = min(context, max(FEWEST_WIDENED, WIDENED_AT_ONCE // token_numbers))
    return 3 * tile_tokens * token_numbers * _FLOAT32  # keys, values, and a tile of both


def gathered_bytes(model: ModelShape, decode: Decode) -> int:
    """Return the bytes of one layer's rows, gathered in an array where attention reads one."""
    verifies = decode.tokens > 1
    token_bytes = [
        layer.nbytes for layer in model.layers if layer.reads_padding or (layer.latent and verifies)
    ]
    if not token_bytes or not (decode.refers or decode.uneven):
        return 0
    share = _GATHERED_STORED_SHARE if decode.refers else _GATHERED_SHARE
    return int(share * decode.rows * decode.context * max(token_bytes))


def copied_ring_bytes(model: ModelShape, decode: Decode) -> int:
    """Return the bytes of rings that are copied while drafts are verified."""
    if decode.tokens == 1:
        return 0
    drafter_bytes = 0
    if model.drafter is not None:
        drafter_bytes = cache_bytes(_ring_layers(model.drafter), decode.rows, decode.context)
    return drafter_bytes + decode.rows * largest_layer(_ring_layers(model), decode.context)


def _ring_layers(model: ModelShape) -> list[LayerKv]:
    return [layer for layer in model.layers if layer.keeps is Keeps.RING]


def _has_growing_layers(model: ModelShape) -> bool:
    return any(layer.keeps is Keeps.GROWING for layer in model.layers)


def catch_up_terms(model: ModelShape, decode: Decode) -> tuple[int, ...]:
    """Return the inner terms of the draft model, which takes in a row's tokens."""
    if model.drafter is None or not decode.catches_up:
        return 0, 0, 0
    return _inner_terms(model.drafter, decode.rows, MOST_BEHIND, decode.context)


def verified_state_bytes(model: ModelShape, decode: Decode) -> int:
    """Return the bytes of recurrent states that exist while drafts are verified."""
    if decode.tokens == 1:
        return 0
    constant = (layer for layer in model.layers if layer.keeps is Keeps.CONSTANT)
    return 2 * decode.rows * sum(layer.nbytes * layer.count for layer in constant)


def _inner_terms(model: ModelShape, rows: int, tokens: int, context: int) -> tuple[int, int, int]:
    tile, has_few = _tile_tokens(model, rows, tokens, context + tokens)
    row_numbers = model.hidden + model.intermediate
    row_numbers += (model.heads + 2 * model.kv_heads) * model.head_dim
    scores = rows * tokens * model.heads * tile * (_FLOAT32 if model.tiles else model.width)
    number_bytes = model.tiles.number_bytes if model.tiles else 0
    unpacked = rows * model.kv_heads * model.head_dim * tile * number_bytes
    if not has_few:
        unpacked = int(unpacked * _UNPACKED_FOR_MANY)
    if tokens > 1 and any(layer.latent for layer in model.layers):  # keys and values of one
        unpacked += 2 * rows * (context + tokens) * model.heads * model.head_dim * model.width
    return rows * tokens * row_numbers * model.width, scores, unpacked


def _merged_cache_bytes(model: ModelShape, rows: int, tokens: int, context: int) -> int:
    return min(
        cache_bytes(model.layers, rows, context, _LAST_CHUNK_TOKENS),
        cache_bytes(model.layers, rows, context + tokens, tokens),
    )


def _tile_tokens(model: ModelShape, rows: int, tokens: int, seen: int) -> tuple[int, bool]:
    # Returns the tokens of tiles alive at a time, and whether few queries share a head's keys.
    tiles = model.tiles
    if tiles is None:
        return seen, False
    has_few = tokens * max(1, model.heads // max(1, model.kv_heads)) < tiles.many_rows
    tile_numbers = tiles.numbers_of_few if has_few else tiles.numbers_of_many
    token_numbers = max(1, rows * model.kv_heads * model.head_dim)
    tile_tokens = max(tiles.fewest, tile_numbers // token_numbers)
    return min(seen, int(tile_tokens * _TILES_ALIVE)), has_few
