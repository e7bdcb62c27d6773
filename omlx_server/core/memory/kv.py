"""A model's shape, and the bytes of live caches by what each layer's cache keeps."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from omlx_server.core.speculation.depth import DEPTHS

# Stored half-precision numbers widened at a time, but at least those of FEWEST_WIDENED tokens.
WIDENED_AT_ONCE = 1 << 22
FEWEST_WIDENED = 512

FEW_QUERIES = 1 + DEPTHS[-1]
"""Up to so many queries a row of plain keys and values that refers to stored tokens is attended in
parts: those of a decode that verifies the longest draft."""

MOST_BEHIND = 8
"""A draft model takes in a row's tokens beside a plain decode when it is this many behind."""


GROWTH = 256
"""The places by which the buffers of mlx-lm's caches grow, and ours."""


def longest_in_group(tokens: int) -> int:
    """Return the longest row that is grouped with this one."""
    return tokens + max(GROWTH, tokens * 3 // 20)


class Keeps(Enum):
    # All tokens of each row, in buffers that grow by 256; rows of similar length together.
    GROWING = "growing"
    PADDED = "padded"  # as GROWING, but the rows of a batch are padded to the longest
    RING = "ring"  # the window's tokens; a longer chunk stands behind them until the next decode
    CONSTANT = "constant"  # a recurrent state


@dataclass(frozen=True, slots=True)
class LayerKv:
    """Caches of `count` equal layers."""

    keeps: Keeps
    nbytes: int  # of a token of a row, or of the state
    count: int = 1
    window: int = 0  # tokens of a ring
    reads_padding: bool = False  # attention reads one padded array
    latent: bool = False  # keys and values are made of it

    @property
    def is_padded(self) -> bool:
        return self.reads_padding or self.keeps is Keeps.PADDED


def places(tokens: int) -> int:
    """Return the tokens for which a buffer of this many has room."""
    return -(-tokens // GROWTH) * GROWTH


def places_with_room(tokens: int) -> int:
    return places(tokens + 1)


def grows(context: int, tokens: int) -> bool:
    """Return whether buffers of `context` tokens must grow for `tokens` more."""
    return places(context) < context + tokens


def layer_bytes(layer: LayerKv, tokens: int, chunk: int = 1) -> int:
    """Return the bytes of one layer for one row, its last `chunk` written at once."""
    if layer.keeps is Keeps.CONSTANT:
        return layer.nbytes
    if layer.keeps is Keeps.RING:
        longest = layer.window + max(chunk, 1) - 1
        return layer.nbytes * min(places(tokens) if chunk <= 1 else tokens, longest)
    return layer.nbytes * places(tokens)


def cache_bytes(layers: Iterable[LayerKv], rows: int, tokens: int, chunk: int = 1) -> int:
    return rows * sum(layer.count * layer_bytes(layer, tokens, chunk) for layer in layers)


def held_bytes(layers: Iterable[LayerKv], rows: Sequence[int], chunk: int = 1) -> int:
    """Return the most bytes of a batch of rows, however their buffers grew."""
    longest = max(rows, default=0)
    if longest == 0:
        return 0
    padded_tokens = sum(longest_of_groups(rows)) + GROWTH * len(rows)
    nbytes = 0
    for layer in layers:
        if layer.keeps is Keeps.GROWING:
            nbytes += layer.count * layer.nbytes * padded_tokens
        else:
            nbytes += layer.count * len(rows) * _most_layer_bytes(layer, longest, chunk)
    return nbytes


def referred_bytes(layers: Iterable[LayerKv], tokens: int) -> int:
    # Only growing caches refer to tokens of blocks.
    growing = (layer for layer in layers if layer.keeps is Keeps.GROWING)
    return tokens * sum(layer.count * layer.nbytes for layer in growing)


def longest_of_groups(rows: Sequence[int]) -> list[int]:
    """Return for each row the tokens of the longest that is grouped with it, in rising order."""
    ordered = sorted(rows)
    if not ordered or ordered[-1] <= longest_in_group(ordered[0]):
        return ordered[-1:] * len(ordered)
    return [ordered[bisect_right(ordered, longest_in_group(tokens)) - 1] for tokens in ordered]


def attended_tokens(
    layers: Iterable[LayerKv], rows: Sequence[int], leaving: Sequence[int] = ()
) -> int:
    """Return the mean tokens that a row attends to, with padding, also beside `leaving` rows."""
    if not rows:
        return 0
    if any(layer.is_padded for layer in layers):
        return max((*rows, *leaving))
    return -(-sum(longest_of_groups(rows)) // len(rows))


def bytes_behind_rings(layers: Iterable[LayerKv], chunk: int) -> int:
    """Return what rings hold besides their window after a `chunk`."""
    rings = (layer for layer in layers if layer.keeps is Keeps.RING)
    return (chunk - 1) * sum(layer.count * layer.nbytes for layer in rings)


def _most_layer_bytes(layer: LayerKv, tokens: int, chunk: int) -> int:
    if layer.keeps is Keeps.CONSTANT:
        return layer.nbytes
    room = tokens + GROWTH
    if layer.keeps is Keeps.RING:
        room = min(room, layer.window + max(chunk, 1) - 1)
    return layer.nbytes * room


def largest_layer(layers: Iterable[LayerKv], tokens: int, chunk: int = 1) -> int:
    return max((layer_bytes(layer, tokens, chunk) for layer in layers), default=0)


def most_of_largest_layer(layers: Iterable[LayerKv], tokens: int) -> int:
    return max((_most_layer_bytes(layer, tokens, 1) for layer in layers), default=0)


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Quantised keys unpacked at a time, for many or few query rows; at least `fewest` tokens."""

    many_rows: int
    numbers_of_many: int
    numbers_of_few: int
    fewest: int
    number_bytes: int = 4


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model in elements."""

    hidden: int
    intermediate: int  # of all chosen experts
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    width: int  # bytes of an element
    layers: tuple[LayerKv, ...] = ()
    tiles: TileSizes | None = None
    drafter: "ModelShape | None" = None
    copied_at_once: int = 16 << 20  # bytes of caches that exist twice when rows come or go
    beside_host: bool = False  # work is launched before earlier work has ended


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """One forward over chunks of `rows` prompts."""

    rows: int
    tokens: int  # to which chunks are padded
    context: int  # the most tokens before a chunk
    refers: bool = False  # some of these are stored


@dataclass(frozen=True, slots=True)
class Decode:
    """One forward over the newest tokens of each row."""

    rows: int
    context: int  # mean tokens that a row attends to
    grows: bool = False  # buffers of caches grow
    refers: bool = False  # some tokens are stored
    tokens: int = 1  # of each row; more with drafts
    uneven: bool = False  # rows are of unequal length
    catches_up: bool = False  # a draft model takes in tokens beside it


@dataclass(frozen=True, slots=True)
class StepShape:
    """One turn: the decode, then the prefills one after the other."""

    decode: Decode | None = None
    prefills: tuple[PrefillShape, ...] = ()
